import asyncio
from contextlib import suppress
from datetime import timedelta

from proto.annotations import keys
from proto.annotations.node_lock import NodeLock, encode_lock
from scheduler_ext.cluster.events import Applied, LockHeld, Wake, unperformed
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.node_locks import NodeLocks
from scheduler_ext.verbs.state_machine import BindAttempt
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device
from tests.scheduler_ext.rig import now


async def test_who_waits_for_a_lock_looks_again_when_its_node_or_holder_changes_and_at_no_other_change() -> None:
    """Nothing is asked of the API server meanwhile: there is none."""
    cluster, looks = LiveCluster(Cluster(), lambda: 0.0, lambda *_: None), list[str]()
    locked = node("n", [device(0)])
    locked.metadata.annotations[keys.NODE_LOCK] = encode_lock(NodeLock(taken_at=now(), namespace="default", pod="h"))
    cluster.apply(Applied(locked))
    cluster.apply(Applied(pod(container(gpu=1), name="h")))
    settings = ServeSettings(node_lock_ttl_seconds=3600.0)
    locks = NodeLocks(api=None, cluster=cluster, settings=settings, now=now)  # type: ignore[arg-type]
    waiter = BindAttempt(number=1, pod=PodName(namespace="default", name="w"), uid="uid-w", node="n")
    taking = asyncio.create_task(locks.take(waiter, looks.append, give_up_at=now() + timedelta(hours=1)))
    for _ in range(1000):
        cluster.apply(Applied(pod(container(gpu=1), name="other")))
        await asyncio.sleep(0)
    assert len(looks) == 1
    for concerns_it in (locked, pod(container(gpu=1), name="h")):
        before = len(looks)
        cluster.apply(Applied(concerns_it))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(looks) == before + 1
    taking.cancel()
    with suppress(asyncio.CancelledError):
        await taking


def test_a_node_comes_last_while_the_lock_that_a_bind_gave_up_on_stands_and_has_not_expired() -> None:
    cluster, names = Cluster(), ["n", "m"]
    locked = node("n", [device(0)])
    locked.metadata.annotations[keys.NODE_LOCK] = "one"
    cluster.step(Applied(locked), 0.0, unperformed(Wake))
    cluster.apply(LockHeld("n", "one", 10.0), 0.0)
    assert (cluster.pods.not_held(names, 9.0), cluster.pods.not_held(names, 10.0)) == (["m"], names)
    locked.metadata.annotations[keys.NODE_LOCK] = "another"
    cluster.step(Applied(locked), 0.0, unperformed(Wake))
    assert cluster.pods.not_held(names, 9.0) == names
