"""Searches for the most expensive pod that the webhook admits: milliseconds of CPU in `/filter`.

Run it with `python -m benchmarks.hostile`. Pods are drawn at random from everything that costs work: GPU containers of
each kind, counts, amounts that nearly fit or fit nowhere, policies, lists, quotas. Pods that the webhook refuses do not
count. The worst at the first size are sent again at the others. Each has a shape that was never sent before. The last
column shows what one unit of `Effort`, by which answers are cut off, took on one node: the docstring of `Effort`
promises two microseconds.
"""

import gc
import random
import time
from dataclasses import dataclass
from itertools import chain

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import GPU_MIB, GPUS, gpu_uuid, node_name
from benchmarks.filter_core import loaded
from proto.admission import AdmissionError, Json, decode_review
from proto.annotations import keys
from proto.extender import encode_filter_result
from proto.kubernetes.objects import Pod, ResourceQuota
from scheduler_ext.admission.admit import admit
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.cluster.events import Applied, Dropped, Wake, unperformed
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.place import place
from scheduler_ext.requests import LONGEST_LIST, MOST_GPU_CONTAINERS, RequestError, RequestSettings, read_request
from scheduler_ext.verbs.filter_decision import FilterDecision

SETTINGS = RequestSettings()
ADMISSION = AdmissionSettings(requests=SETTINGS)
NEAR = "near"
"""A namespace whose quota may refuse, so that it is checked for each GPU."""


@dataclass(frozen=True)
class Cost:
    """Milliseconds of CPU: at the webhook, until `/filter` has answered, and afterwards. `unit` is the microseconds
    that one unit of effort took.
    """

    webhook: float
    answer: float
    after: float
    unit: float
    fits: bool

    @property
    def total(self) -> float:
        return self.answer + self.after


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default="1000,5000", help="Sizes of the cluster; the first is searched.")
@click.option("--pods", default=4, help="Running pods on each node.")
@click.option("--tries", default=150, help="Pods drawn.")
@click.option("--seed", default=1, help="Seed of the random pods.")
@click.option("--worst", default=5, help="Rows of the table.")
def main(*, nodes: str, pods: int, tries: int, seed: int, worst: int) -> None:
    """Print the cost of the worst pods found, in CPU time of the thread that answers."""
    first, *others = (int(word) for word in nodes.split(","))
    drawn = random.Random(seed)
    with_costs = []
    refused = 0
    asking = _Asking(first, pods)
    for number in range(tries):
        pod = hostile_pod(drawn, number, first)
        cost = asking.cost(pod)
        if cost is None:
            refused += 1
        else:
            with_costs.append((cost, pod))
    with_costs.sort(key=lambda pair: -pair[0].total)
    table = Table("nodes", "pod", "fits", "webhook ms", "/filter ms", "after it ms", "us per effort")
    for cost, pod in with_costs[:worst]:
        _row(table, first, pod, cost)
    for size in others:
        asking = _Asking(size, pods)
        for _, pod in with_costs[:worst]:
            again = asking.cost(pod)
            if again is not None:
                _row(table, size, pod, again)
    console = Console(width=160)
    console.print(table)
    console.print(f"{tries} pods drawn, {refused} refused by the webhook")


class _Asking:
    """One cluster, and its answers."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._names = [node_name(number) for number in range(nodes)]
        self._cluster = loaded(nodes, pods, SETTINGS)
        hard = {f"limits.{keys.RESOURCE_MEMORY}": str(10 * GPU_MIB), f"limits.{keys.RESOURCE_COUNT}": "64"}
        quota = {"metadata": {"name": "q", "namespace": NEAR}, "spec": {"hard": hard}}
        self._cluster.step(Applied(msgspec.convert(quota, ResourceQuota)), 0.0, unperformed(Wake))
        self._index = NodeIndex(self._cluster.ledger)
        self._index.look_ahead()
        gc.collect()
        gc.freeze()

    def cost(self, pod: Json) -> Cost | None:
        """Returns None for a pod that the webhook refuses."""
        request = {"uid": "u", "operation": "CREATE", "namespace": pod["metadata"]["namespace"], "object": pod}
        body = msgspec.json.encode({"request": request})
        began = time.thread_time()
        try:
            allowed = admit(decode_review(body), ADMISSION).allowed
        except AdmissionError:
            allowed = False
        admitted = time.thread_time()
        if not allowed:
            return None
        read = msgspec.json.decode(msgspec.json.encode(pod), type=Pod)
        start = time.thread_time()
        try:
            wanted = read_request(read, SETTINGS)
        except RequestError:
            return None
        if wanted is None:
            return None
        answer = FilterDecision(self._index, self._cluster, 60.0).reserve(read, wanted, self._names, 0.0)
        encode_filter_result(answer.result)
        answered = time.thread_time()
        answer.notices()
        self._index.look_ahead()
        ended = time.thread_time()
        place(wanted, self._cluster.ledger.snapshot().nodes[self._names[0]], None, effort := Effort())
        placed = time.thread_time()
        self._cluster.apply(Dropped(wanted.uid), 0.0)
        return Cost(
            webhook=1e3 * (admitted - began),
            answer=1e3 * (answered - start),
            after=1e3 * (ended - answered),
            unit=1e6 * (placed - ended) / max(effort.made, 1),
            fits=bool(answer.result.node_names),
        )


def hostile_pod(drawn: random.Random, number: int, nodes: int) -> Json:
    """Returns a pod with its own shape."""
    apps = drawn.choice([1, 1, 2, 4, 8, MOST_GPU_CONTAINERS])
    inits = drawn.choice([0, 0, 1, 4, MOST_GPU_CONTAINERS - apps])
    containers = [_container(drawn, f"a{n}", number) for n in range(apps)]
    helpers = [{"name": f"h{n}"} for n in range(drawn.choice([0, 0, 230]))]
    lists = {
        keys.USE_GPU_UUID: _uuids(drawn, nodes),
        keys.NO_USE_GPU_UUID: _uuids(drawn, nodes),
        keys.NO_USE_GPU_TYPE: ",".join(f"z{n:x}" for n in range(3000)),
        keys.NUMA_BIND: "true",
        keys.GPU_POLICY: drawn.choice(["topology-aware", "binpack", "mutex", "numa,binpack,spread"]),
        keys.SCORING_WEIGHTS: f"slot={number + 1},core=3,memory=7",
    }
    annotations = {key: lists[key] for key in lists if drawn.random() < 0.3}
    return {
        "metadata": {
            "name": f"p{number}",
            "namespace": drawn.choice(["ns", NEAR]),
            "uid": f"hostile-{number}",
            "annotations": annotations,
        },
        "spec": {
            "containers": [*containers, *helpers],
            "initContainers": [
                {**_container(drawn, f"i{n}", number), **drawn.choice([{}, {"restartPolicy": "Always"}])}
                for n in range(max(inits, 0))
            ],
        },
    }


def _container(drawn: random.Random, name: str, number: int) -> Json:
    amounts = {
        keys.RESOURCE_COUNT: str(drawn.choice([1, 1, 2, 3, 4, GPUS, 256 if drawn.random() < 0.05 else 1])),
        drawn.choice([keys.RESOURCE_MEMORY, keys.RESOURCE_MEMORY_PERCENTAGE]): "1",
    }
    if keys.RESOURCE_MEMORY in amounts:
        amounts[keys.RESOURCE_MEMORY] = str(drawn.choice([1, 500, GPU_MIB // 2, GPU_MIB - 4096]) + number)
    if drawn.random() < 0.3:
        amounts[keys.RESOURCE_CORES] = str(drawn.choice([1, 30, 96, 100]))
    return {"name": name, "resources": {"limits": amounts}}


def _uuids(drawn: random.Random, nodes: int) -> str:
    most = LONGEST_LIST // (len(gpu_uuid(0, 0)) + 1)
    return ",".join(gpu_uuid(drawn.randrange(nodes), drawn.randrange(GPUS)) for _ in range(most))


def _row(table: Table, nodes: int, pod: Json, cost: Cost) -> None:
    table.add_row(str(nodes), _in_words(pod), "yes" if cost.fits else "no", *(f"{ms:.1f}" for ms in _times(cost)))


def _times(cost: Cost) -> tuple[float, ...]:
    return cost.webhook, cost.answer, cost.after, cost.unit


def _in_words(pod: Json) -> str:
    spec, metadata = pod["spec"], pod["metadata"]
    asking = [each for each in chain(spec["initContainers"], spec["containers"]) if "resources" in each]
    counts = ",".join(each["resources"]["limits"][keys.RESOURCE_COUNT] for each in asking)
    written = " ".join(sorted(key.rpartition("/")[2] for key in metadata["annotations"]))
    quota = " quota" if metadata["namespace"] == NEAR else ""
    kinds = f"{len(spec['initContainers'])} init + {len(asking) - len(spec['initContainers'])}"
    return f"{kinds} of {counts} GPUs {written} {metadata['annotations'].get(keys.GPU_POLICY, '')}{quota}"


if __name__ == "__main__":
    main()
