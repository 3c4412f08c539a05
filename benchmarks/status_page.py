"""Measures what a look of the status page costs the extender, and what a browser receives.

`python -m benchmarks.status_page NODES` takes some seconds. What the browser does with it: `benchmarks.status_browser`.
What browsers cost `/filter`: `benchmarks.status_filter`.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from proto.daemon_usage import ContainerUse, GpuUse, NodeUse
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.events import Applied, Listed, Removed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.status.board import Board
from scheduler_ext.status.explaining import Explainer
from scheduler_ext.status.poller import Poller
from scheduler_ext.status.view import Poll, Standing, Uses
from scheduler_ext.verbs.live_cluster import LiveCluster
from tests.scheduler_ext.status.shown import busy_cluster, running_pod

ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of CPU on the thread that answers kube-scheduler and on the page's, and bytes to each browser."""

    changed: int
    looking: float
    showing: float
    sent: int


class Played:
    """A cluster in the extender's memory, and pods that come and go on some of its nodes."""

    def __init__(self, nodes: int) -> None:
        bodies = list(busy_cluster(nodes))
        self.live = LiveCluster(Cluster(), time.monotonic, lambda *_: None)
        self.live.apply(Listed(Node, [msgspec.convert(each, Node) for each in bodies if each["kind"] == "Node"]))
        self.live.apply(Listed(Pod, [_pod(each) for each in bodies if each["kind"] == "Pod"]))
        self._number = 0
        self._uses = Uses(nodes={name: self._use(name) for name in self.live.state.ledger.nodes.usages()})

    def _use(self, node: str) -> NodeUse:
        """Every second pod computes on its GPUs; the others have not for longer than an hour."""
        alone, names = self.live.state.ledger.alone(node), self.live.state.pods.names()
        assert alone is not None
        held = [(names[uid], gpu) for uid, record in alone.held.items() for gpu in record.on(node).footprints]
        containers = tuple(
            ContainerUse(
                pod=f"{pod.namespace}/{pod.name}",
                container="main",
                gpu=gpu,
                memory=2048,
                busy=50 * (number % 2),
                unused=5000 * (1 - number % 2),
            )
            for number, (pod, gpu) in enumerate(held)
        )
        gpus = {each.gpu: GpuUse(memory=2048, busy=each.busy) for each in containers}
        return NodeUse(node=node, gpus=gpus, containers=containers)

    def change(self, nodes: int) -> None:
        """A small pod comes to, or leaves, each of so many nodes."""
        self._number += 1
        for number in range(nodes):
            pod = _pod(running_pod(f"brief-{number}", f"gpu-{number + 1}", (number % 8,), memory_mib=512, cores=1))
            self.live.apply(Applied(pod) if self._number % 2 else Removed(pod))

    def poller(self, show: Callable[[Poll], Any], watched: Callable[[], bool]) -> Poller:
        return Poller(
            cluster=self.live,
            explainer=Explainer(self.live),
            uses=lambda: self._uses,
            standing=Standing,
            show=show,
            watched=watched,
            seconds_since_1970=time.time,
        )


def _pod(body: dict[str, Any]) -> Pod:
    metadata = {"uid": f"uid-{body['metadata']['namespace']}-{body['metadata']['name']}", **body["metadata"]}
    return msgspec.convert({**body, "metadata": metadata}, Pod)


async def costs(nodes: int) -> Sequence[Cost]:
    cluster, board = Played(nodes), Board("p")

    async def show(_: Poll) -> bool:
        return True

    poller = cluster.poller(show, lambda: True)
    found = []
    board.apply(await poller.poll())
    for changed in (0, 1, 10, 100, nodes):
        rounds = []
        for _ in range(ROUNDS):
            cluster.change(changed)
            cluster.live.state.ledger.nodes.usages()  # otherwise the next /filter does this
            seen, began = board.id, time.thread_time()
            poll = await poller.poll()
            looked = time.thread_time()
            board.apply(poll)
            sent = sum(map(len, board.messages(seen)))
            rounds.append((looked - began, time.thread_time() - looked, sent))
        looking, showing, sent_ = (median(column) for column in zip(*rounds, strict=True))
        found.append(Cost(changed, 1000 * looking, 1000 * showing, int(sent_)))
    return found


async def main(nodes: int) -> None:
    print(f"{nodes} nodes of 8 GPUs\n")
    print("changed  looking ms  showing ms  sent KiB")
    for cost in await costs(nodes):
        print(f"{cost.changed:7}  {cost.looking:10.2f}  {cost.showing:10.2f}  {cost.sent / 1024:8.1f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
