import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proto.annotations import keys
from proto.kubernetes.client import ApiServer
from scheduler_ext.cluster.events import Applied, Wake, unperformed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.membership import COSCHEDULING_GROUPS, KUEUE_GROUP
from scheduler_ext.requeue import Requeuer
from scheduler_ext.verbs.live_cluster import LiveCluster
from simulation.apiserver import EmbeddedApiServer
from tests.builders import container, node, node_json, pod, pod_json
from tests.polling import until
from tests.scheduler_ext.costly import costly, different_nodes
from tests.scheduler_ext.gpus import device, request
from tests.scheduler_ext.rig import Rig, now, running


def with_one_gpu() -> Cluster:
    cluster = Cluster()
    cluster.ledger.replace_nodes([node("n", [device(0)])])
    return cluster


@asynccontextmanager
async def requeuing(
    server: EmbeddedApiServer,
    cluster: Cluster,
    folder: Path,
    *,
    leads: Callable[[], bool],
    requeued: Callable[[], None] = lambda: None,
) -> AsyncIterator[LiveCluster]:
    (folder / "config").write_text(server.kubeconfig())
    api = await ApiServer.connect(str(folder / "config"))
    live = LiveCluster(cluster, time.monotonic, lambda *_: None)
    requeuer = Requeuer(
        api=api,
        cluster=live,
        index=NodeIndex(cluster.ledger),
        leads=leads,
        requeued=requeued,
        now=now,
    )
    work = asyncio.create_task(requeuer.run())
    try:
        yield live
    finally:
        work.cancel()
        await api.close()


async def test_a_replica_that_does_not_lead_requeues_no_pod(tmp_path: Path) -> None:
    cluster = with_one_gpu()
    requeues: list[str] = []
    requeues_when_polled: list[int] = []

    def leads() -> bool:
        """From the second time on."""
        requeues_when_polled.append(len(requeues))
        return len(requeues_when_polled) > 1

    async with EmbeddedApiServer() as server:
        uid = server.create(pod_json("p"))["metadata"]["uid"]
        cluster.queue.refused(replace(request(pod(container(gpu=1))), uid=uid), 0, time.monotonic())
        async with requeuing(server, cluster, tmp_path, leads=leads, requeued=lambda: requeues.append("p")) as live:
            for times in (1, 2):
                live.freed.set()

                async def asked(times: int = times) -> bool:
                    return len(requeues_when_polled) == times

                await until(asked)

            async def requeued() -> bool:
                return requeues == ["p"]

            await until(requeued)
            assert requeues_when_polled[:2] == [0, 0]


@pytest.mark.parametrize("different", [True, False])
async def test_many_pods_that_fit_nowhere_keep_nobody_behind_them_from_the_room(
    tmp_path: Path, *, different: bool
) -> None:
    """Each asking for something else, or all for the same."""
    cluster = with_one_gpu()
    for number in range(200):
        asked = container(gpu=2, gpumem=1000 + number * different)
        cluster.queue.refused(request(pod(asked, name=f"large{number}")), 0, time.monotonic())
    async with EmbeddedApiServer() as server:
        uid = server.create(pod_json("small"))["metadata"]["uid"]
        small = replace(request(pod(container(gpu=1), name="small")), uid=uid)
        cluster.queue.refused(small, 0, time.monotonic())
        async with requeuing(server, cluster, tmp_path, leads=lambda: True) as live:

            async def requeued() -> bool:
                live.freed.set()
                found = server.store.get("pods", "default", "small")
                return found is not None and keys.REQUEUE in found["metadata"].get("annotations", {})

            await until(requeued)


@pytest.mark.parametrize(("labels", "requeues"), [({COSCHEDULING_GROUPS[0]: "g"}, 1), ({KUEUE_GROUP: "g"}, 3)])
async def test_a_group_that_kube_scheduler_tries_as_a_whole_is_requeued_by_one_of_its_pods(
    tmp_path: Path, labels: dict[str, str], requeues: int
) -> None:
    cluster, seen = with_one_gpu(), list[str]()
    async with EmbeddedApiServer() as server:
        for number in range(3):
            name = f"g{number}"
            made = pod(container(gpu=1), name=name, labels=labels, uid=server.create(pod_json(name))["metadata"]["uid"])
            cluster.step(Applied(made), time.monotonic(), unperformed(Wake))
            cluster.queue.refused(request(made), 0, time.monotonic())
        uid = server.create(pod_json("after"))["metadata"]["uid"]
        cluster.queue.refused(replace(request(pod(container(gpu=1), name="after")), uid=uid), 0, time.monotonic())
        async with requeuing(server, cluster, tmp_path, leads=lambda: True, requeued=lambda: seen.append("")) as live:
            live.freed.set()

            async def requeued() -> bool:
                found = server.store.get("pods", "default", "after")
                return found is not None and keys.REQUEUE in found["metadata"].get("annotations", {})

            await until(requeued)
            await until(lambda: len(seen) > requeues)
    assert len(seen) == requeues + 1


async def test_pods_that_take_long_to_look_at_let_those_behind_them_pass(tmp_path: Path) -> None:
    cluster, _ = different_nodes()
    for number in range(150):
        cluster.queue.refused(costly(49_000 + number, f"costly{number}"), 0, time.monotonic())
    async with EmbeddedApiServer() as server:
        uid = server.create(pod_json("small"))["metadata"]["uid"]
        cluster.queue.refused(replace(request(pod(container(gpu=1), name="small")), uid=uid), 0, time.monotonic())
        async with requeuing(server, cluster, tmp_path, leads=lambda: True):

            async def requeued() -> bool:
                found = server.store.get("pods", "default", "small")
                return found is not None and keys.REQUEUE in found["metadata"].get("annotations", {})

            await until(requeued)


async def test_a_waiting_pod_is_requeued_as_soon_as_there_is_room() -> None:
    async with running(node_json("n", replicas=1)) as rig:
        first, waiting = rig.add_pod("first"), rig.add_pod("waiting")
        assert await rig.bind(first, "n") == ""
        assert (await rig.filter(waiting, "n"))["NodeNames"] is None
        assert keys.REQUEUE not in rig.pod("waiting")["metadata"].get("annotations", {})
        rig.server.delete("pods", "first", namespace="default")

        async def requeued() -> bool:
            return keys.REQUEUE in rig.pod("waiting")["metadata"].get("annotations", {})

        await until(requeued)
        assert (await rig.filter(waiting, "n"))["NodeNames"] == ["n"]


async def fits(rig: Rig, pod: dict[str, Any]) -> bool:
    return bool((await rig.filter(pod, "n"))["NodeNames"])


async def test_a_pod_made_anew_under_the_name_is_not_requeued_and_the_old_one_no_longer_waits() -> None:
    async with running(node_json("n", replicas=1)) as rig:
        first, anew = rig.add_pod("first"), rig.add_pod("waiting")
        assert await rig.bind(first, "n") == ""
        earlier = anew | {"metadata": anew["metadata"] | {"uid": "11111111-2222-4333-8444-555555555555"}}
        assert (await rig.filter(earlier, "n"))["NodeNames"] is None

        async def waiting(count: str) -> bool:
            async with rig.http.get(rig.metrics_url + "/metrics") as response:
                return f"topogpu_waiting_pods {count}\n" in await response.text()

        assert await waiting("1.0")
        rig.server.delete("pods", "first", namespace="default")
        await until(lambda: fits(rig, anew))
        await until(lambda: waiting("0.0"))
        assert keys.REQUEUE not in rig.pod("waiting")["metadata"].get("annotations", {})
