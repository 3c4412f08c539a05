"""Binds against the embedded API server."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from proto.annotations import keys
from proto.annotations.node_lock import NodeLock, encode_lock, encode_lock_uid
from proto.extender import BindingArgs
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.membership import KUEUE_GROUP, KUEUE_SIZE
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.bind import Binder
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.state_machine import BindEvent, SentBinding
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import FAST, Rig, extender_for, now, running
from tests.scheduler_ext.verbs.test_state_machine import Played

IMMEDIATE = node_json("n", allocation="immediate")
LOCK_WAIT = "topogpu_node_lock_wait_duration_seconds"


async def test_a_bind_is_one_write_with_the_whole_decision() -> None:
    async with running(node_json("n")) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n")
        assert await rig.bind(pod, "n") == ""
        assert rig.writes() == [("create", "pods", "binding")]
        bound = rig.pod("p")
        assert bound["spec"]["nodeName"] == "n"
        assert bound["metadata"]["labels"][keys.POD_NODE] == "n"
        annotations = bound["metadata"]["annotations"]
        assert annotations.pop(keys.POD_TIME).isdigit()
        assert annotations.pop(keys.BIND_TIME).isdigit()
        assert annotations == {
            keys.POD_NODE: "n",
            keys.DEVICES_TO_ALLOCATE: "GPU-n-0,NVIDIA,1000,0:;",
            keys.DEVICES_ALLOCATED: "GPU-n-0,NVIDIA,1000,0:;",
            keys.BIND_PHASE: "success",
        }


async def test_a_repeated_bind_does_no_harm() -> None:
    async with running(node_json("n"), node_json("m")) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n")
        assert await asyncio.gather(*(rig.bind(pod, "n") for _ in range(3))) == ["", "", ""]
        assert await rig.bind(pod, "n") == ""
        assert "already bound to node n" in await rig.bind(pod, "m")
        assert len(rig.writes()) <= 2


async def test_without_a_reservation_the_pod_is_decided_for_the_named_node() -> None:
    async with running(node_json("n", replicas=1)) as rig:
        pod, late = rig.add_pod("p"), rig.add_pod("late")
        assert await rig.bind(pod, "n") == ""
        assert rig.pod("p")["metadata"]["annotations"][keys.DEVICES_ALLOCATED] == "GPU-n-0,NVIDIA,1000,0:;"
        problem = await rig.bind(late, "n")
        gone = "it has no reservation there and does not fit: 1/1 CardTimeSlicingExhausted"
        assert problem == f"pod default/late cannot be bound to node n: {gone}"


async def test_a_pod_without_gpus_gets_a_plain_binding() -> None:
    async with running(node_json("n")) as rig:
        pod = rig.add_pod("p", gpus=0)
        assert await rig.bind(pod, "n") == ""
        assert rig.pod("p")["spec"]["nodeName"] == "n"
        assert keys.POD_NODE not in rig.pod("p")["metadata"].get("annotations", {})


async def test_a_pod_or_node_that_is_gone_is_one_sentence() -> None:
    async with running(node_json("n")) as rig:
        pod = rig.add_pod("p")
        assert await rig.bind(pod, "x") == "pod default/p cannot be bound to node x: there is no such node"
        rig.server.delete("pods", "p", namespace="default")
        assert await rig.bind(pod, "n") == "pod default/p cannot be bound to node n: the pod is gone"


async def test_a_bind_whose_answer_was_lost_is_still_a_bind() -> None:
    async with running(node_json("n")) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n")
        rig.server.inject(Fault(resources=frozenset({"pods"}), subresource="binding", drop="after", times=1))
        assert await rig.bind(pod, "n") == ""


async def test_an_api_server_that_stays_away_ends_at_the_deadline() -> None:
    async with running(node_json("n"), bind_deadline_seconds=1.0) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n")
        rig.server.inject(Fault(subresource="binding", status=500))
        problem = await rig.bind(pod, "n")
        assert problem.startswith(
            "pod default/p cannot be bound to node n: not done within 1 s: the API server answered 500"
        )


READ = Fault(verbs=frozenset({"get"}), resources=frozenset({"pods"}))


async def test_a_pod_whose_binding_got_lost_on_the_way_gives_its_gpus_back_soon() -> None:
    """The API server never saw it, but nobody here can know."""
    async with running(node_json("n", replicas=1), settle_seconds=0.05) as rig:
        pod, other = rig.add_pod("p"), rig.add_pod("other")
        await rig.filter(pod, "n")
        unread = rig.server.inject(replace(READ, status=503))
        await rig.bind_without_an_answer(pod, "n", "before")
        assert (await rig.filter(other, "n"))["NodeNames"] is None
        rig.server.faults.remove(unread)

        async def free() -> bool:
            return bool((await rig.filter(other, "n"))["NodeNames"] == ["n"])

        await until(free)


async def test_a_pod_that_was_bound_though_the_answer_was_lost_keeps_its_gpus() -> None:
    async with running(node_json("n", replicas=1), settle_seconds=0.05) as rig:
        pod, other = rig.add_pod("p"), rig.add_pod("other")
        await rig.filter(pod, "n")
        rig.server.inject(Fault(verbs=frozenset({"watch"}), resources=frozenset({"pods"}), stall=True))
        rig.server.drop_watches()
        unread = rig.server.inject(replace(READ, drop="before"))
        await rig.bind_without_an_answer(pod, "n", "after")
        rig.server.faults.remove(unread)
        reads = reads_of(rig)

        async def looked() -> bool:
            return reads_of(rig) > reads

        await until(looked)
        for _ in range(10):
            assert (await rig.filter(other, "n"))["NodeNames"] is None


async def test_the_look_for_a_lost_binding_takes_nothing_from_a_second_bind_under_way() -> None:
    async with running(node_json("n", replicas=1), settle_seconds=0.05) as rig:
        pod, other = rig.add_pod("p"), rig.add_pod("other")
        await rig.filter(pod, "n")
        rig.server.inject(replace(READ, latency_seconds=0.8))
        await rig.bind_without_an_answer(pod, "n", "before")
        rig.server.inject(Fault(subresource="binding", latency_seconds=1.2))
        second = asyncio.create_task(rig.bind(pod, "n"))
        while not second.done():
            assert (await rig.filter(other, "n"))["NodeNames"] is None
            await asyncio.sleep(0.01)
        assert await second == ""
        assert reads_of(rig) == 1


def reads_of(rig: Rig) -> int:
    return sum(request.verb == "get" and request.resource == "pods" for request in rig.server.requests)


async def test_a_bind_that_must_not_wait_is_refused_while_the_lock_is_anothers() -> None:
    async with running(IMMEDIATE, lock_wait_seconds=0.0) as rig:
        first, second = rig.add_pod("first"), rig.add_pod("second")
        assert await rig.bind(first, "n") == ""
        problem = await rig.bind(second, "n")
        assert "pod default/first holds its lock since" in problem
        assert problem.endswith("; waited 0 s")


async def test_a_bind_waits_for_the_lock_no_longer_than_it_may() -> None:
    async with running(IMMEDIATE, lock_wait_seconds=0.2) as rig:
        pods = [rig.add_pod(name) for name in ("first", "second", "third")]
        assert await rig.bind(pods[0], "n") == ""
        problems = await asyncio.gather(*(rig.bind(pod, "n") for pod in pods[1:]))
        assert all(problem.endswith("; waited 0.2 s") for problem in problems)


async def test_a_bind_that_gave_up_waiting_counts_among_those_that_waited() -> None:
    async with running(IMMEDIATE, lock_wait_seconds=0.2) as rig:
        first, second = rig.add_pod("first"), rig.add_pod("second")
        assert await rig.bind(first, "n") == ""
        assert (await rig.bind(second, "n")).endswith("; waited 0.2 s")
        async with rig.http.get(rig.metrics_url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        waits = {name: float(value) for name, value in (line.split() for line in lines if line.startswith(LOCK_WAIT))}
        assert waits[f"{LOCK_WAIT}_count"] == 2
        assert waits[f"{LOCK_WAIT}_sum"] >= 0.2


async def test_an_api_server_that_asks_for_patience_is_given_it_and_has_written_nothing() -> None:
    async with running(node_json("n", replicas=1), bind_deadline_seconds=1.0) as rig:
        pod, other = rig.add_pod("p"), rig.add_pod("other")
        await rig.filter(pod, "n")
        rig.server.inject(Fault(subresource="binding", status=429))
        assert "429" in await rig.bind(pod, "n")
        assert rig.writes() == [("create", "pods", "binding")]
        assert (await rig.filter(other, "n"))["NodeNames"] == ["n"]


async def test_two_binds_on_an_immediate_node_go_one_after_the_other_as_the_phase_flips() -> None:
    async with running(IMMEDIATE, node_json("other")) as rig:
        first, second = rig.add_pod("first"), rig.add_pod("second")
        for pod in (first, second):
            await rig.filter(pod, "n")
        assert await rig.bind(first, "n") == ""
        lock = rig.lock("n")
        assert lock is not None
        assert lock.endswith(",default,first")
        waiting = asyncio.create_task(rig.bind(second, "n"))
        assert await rig.bind(rig.add_pod("third"), "other") == ""
        assert not waiting.done()
        rig.set_phase("first", "success")
        assert await waiting == ""
        lock = rig.lock("n")
        assert lock is not None
        assert lock.endswith(",default,second")


async def test_on_a_node_of_hamis_daemon_the_next_bind_waits_until_the_daemon_has_removed_the_lock() -> None:
    """That daemon removes the lock after it has written that the pod is served, and looks at no owner."""
    of_hami = node_json("n")
    del of_hami["metadata"]["annotations"][keys.NODE_ALLOCATION]
    async with running(of_hami, node_json("other", replicas=20)) as rig:
        first, second = rig.add_pod("first"), rig.add_pod("second")
        assert await rig.bind(first, "n") == ""
        waiting = asyncio.create_task(rig.bind(second, "n"))
        assert await rig.bind(rig.add_pod("third"), "other") == ""
        rig.set_phase("first", "success")
        for number in range(10):
            assert await rig.bind(rig.add_pod(f"other-{number}"), "other") == ""
        assert (rig.lock("n") or "").endswith(",default,first")
        rig.server.patch("nodes", "n", {"metadata": {"annotations": {keys.NODE_LOCK: None}}})
        assert await waiting == ""
        assert (rig.lock("n") or "").endswith(",default,second")


async def test_where_a_lock_stays_pods_go_to_other_nodes_until_it_is_gone_and_there_only_if_none_has_room() -> None:
    of_hami = node_json("n", replicas=20)
    del of_hami["metadata"]["annotations"][keys.NODE_ALLOCATION]
    async with running(of_hami, node_json("other", replicas=2), lock_wait_seconds=0.2) as rig:
        first, second, third, fourth = (rig.add_pod(name) for name in ("first", "second", "third", "fourth"))
        await rig.filter(first, "n")
        assert await rig.bind(first, "n") == ""
        # HAMi's daemon has ended before it removed the lock.
        rig.set_phase("first", "success")
        both = ("n", "other")
        assert (await rig.filter(second, *both))["NodeNames"] == ["n"]
        problem = await rig.bind(second, "n")
        assert "pod default/first holds its lock since" in problem
        assert "ends at" in problem
        _, account = await rig.status("/debug/explain?namespace=default&pod=second")
        assert "its bind to node n waits: pod default/first holds its lock since" in account
        assert (await rig.filter(second, *both))["NodeNames"] == ["other"]
        assert await rig.bind(second, "other") == ""
        assert (await rig.filter(third, *both))["NodeNames"] == ["other"]
        assert (await rig.filter(fourth, *both))["NodeNames"] == ["n"]
        rig.server.patch("nodes", "n", {"metadata": {"annotations": {keys.NODE_LOCK: None}}})
        assert await rig.bind(fourth, "n") == ""


async def test_a_lock_that_stays_does_not_matter_once_our_daemon_needs_none() -> None:
    async with running(IMMEDIATE, node_json("other"), lock_wait_seconds=0.0) as rig:
        assert await rig.bind(rig.add_pod("first"), "n") == ""
        second = rig.add_pod("second")
        assert "holds its lock" in await rig.bind(second, "n")
        assert (await rig.filter(second, "n", "other"))["NodeNames"] == ["other"]
        rig.server.patch("nodes", "n", {"metadata": {"annotations": {keys.NODE_ALLOCATION: "slots"}}})

        async def best_again() -> bool:
            answer = await rig.filter(second, "n", "other")
            return bool(answer["NodeNames"] == ["n"])

        await until(best_again)
        assert await rig.bind(second, "n") == ""


async def test_a_bind_that_waits_too_long_says_for_whom_and_leaves_the_others_lock() -> None:
    async with running(IMMEDIATE, bind_deadline_seconds=1.0) as rig:
        first, second = rig.add_pod("first"), rig.add_pod("second")
        assert await rig.bind(first, "n") == ""
        problem = await rig.bind(second, "n")
        assert "not done within 1 s: pod default/first holds its lock since" in problem
        lock = rig.lock("n")
        assert lock is not None
        assert lock.endswith(",default,first")


async def test_the_lock_of_a_pod_that_is_gone_is_taken_over() -> None:
    async with running(IMMEDIATE) as rig:
        stale = encode_lock(NodeLock(taken_at=now(), namespace="default", pod="never-was"))
        rig.server.patch("nodes", "n", {"metadata": {"annotations": {keys.NODE_LOCK: stale}}})
        assert await rig.bind(rig.add_pod("p"), "n") == ""


async def test_a_deleted_holder_frees_its_node_at_once() -> None:
    async with running(IMMEDIATE, node_json("other")) as rig:
        first, second = rig.add_pod("first"), rig.add_pod("second")
        assert await rig.bind(first, "n") == ""
        waiting = asyncio.create_task(rig.bind(second, "n"))
        assert await rig.bind(rig.add_pod("third"), "other") == ""
        rig.server.delete("pods", "first", namespace="default")
        assert await waiting == ""


async def test_an_unreadable_lock_expires() -> None:
    async with running(IMMEDIATE, node_lock_ttl_seconds=0.3) as rig:
        rig.server.patch("nodes", "n", {"metadata": {"annotations": {keys.NODE_LOCK: "a,b,c,d"}}})
        assert await rig.bind(rig.add_pod("p"), "n") == ""


async def test_a_refused_binding_gives_lock_and_gpus_back() -> None:
    async with running(node_json("n", replicas=1, allocation="immediate")) as rig:
        pod, other = rig.add_pod("p"), rig.add_pod("other")
        await rig.filter(pod, "n")
        rig.server.inject(Fault(subresource="binding", status=422, times=1))
        assert "422" in await rig.bind(pod, "n")
        assert (await rig.filter(other, "n"))["NodeNames"] == ["n"]

        async def unlocked() -> bool:
            return rig.lock("n") is None

        await until(unlocked)


async def test_a_lock_is_released_though_the_api_server_is_away_at_first() -> None:
    async with running(IMMEDIATE) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n")
        rig.server.inject(Fault(subresource="binding", status=422, times=1))
        rig.server.inject(replace(READ, status=503, times=2))
        rig.server.inject(Fault(verbs=frozenset({"get"}), resources=frozenset({"nodes"}), status=503, times=1))
        assert "422" in await rig.bind(pod, "n")

        async def unlocked() -> bool:
            return rig.lock("n") is None

        await until(unlocked)


async def test_a_bind_that_failed_does_not_release_the_lock_of_the_next_bind_of_its_pod() -> None:
    async with running(IMMEDIATE) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n")
        rig.server.inject(Fault(subresource="binding", status=422, times=1))
        rig.server.inject(Fault(verbs=frozenset({"get"}), resources=frozenset({"nodes"}), latency_seconds=0.5, times=1))
        assert "422" in await rig.bind(pod, "n")
        await rig.filter(pod, "n")
        assert await rig.bind(pod, "n") == ""
        written = [
            (request.verb, request.resource)
            for request in rig.server.requests
            if request.verb in ("create", "patch") and request.resource in ("nodes", "pods")
        ]
        # Taken, released, and taken again, perhaps at the second attempt.
        assert written.count(("patch", "nodes")) >= 3
        assert written[-1] == ("create", "pods")
        assert "default,p" in (rig.lock("n") or "")


class BreakingJournal(JournalFiles):
    """A journal whose first write raises an error that the bind does not handle."""

    problem: Exception | None = ZeroDivisionError("of this test")

    def add(self, sent: SentBinding) -> None:
        problem, self.problem = self.problem, None
        if problem is not None:
            raise problem
        super().add(sent)


async def test_a_bind_that_breaks_off_is_answered_and_leaves_no_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(IMMEDIATE, files=BreakingJournal(tmp_path)) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n")
        problem = await rig.bind(pod, "n")
        said = "internal error, see the log: ZeroDivisionError('of this test')"
        assert problem == f"pod default/p cannot be bound to node n: {said}"
        assert "its bind broke off" in caplog.text

        async def unlocked() -> bool:
            return rig.lock("n") is None

        await until(unlocked)
        await rig.filter(pod, "n")
        assert await rig.bind(pod, "n") == ""


async def test_who_gives_up_waiting_for_binds_takes_no_answer_from_kube_scheduler() -> None:
    """As a change of leaders does that is overtaken by the next."""
    played = LiveCluster(Cluster(), lambda: 0.0, lambda *_: None), Played(lambda _: "")
    binder = Binder(
        cluster=played[0],
        actions=played[1],  # type: ignore[arg-type]
        settings=ServeSettings(),
        lock_waited=lambda _: None,
    )
    args = BindingArgs(pod_name="p", pod_namespace="default", pod_uid="uid-p", node="n")
    bound = asyncio.create_task(binder.bind(args))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(binder.drop_reservations())
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    (question,) = played[1].asked
    question.answer.set_result(BindEvent.HAS_NODE)
    assert await bound == ""


async def test_a_refusal_for_another_node_takes_nothing_from_what_the_next_process_must_know(tmp_path: Path) -> None:
    """kube-scheduler began again and chose another node, while the first Binding may still be carried out."""
    server_files = JournalFiles(tmp_path)
    async with EmbeddedApiServer() as server:
        server.create(node_json("a"))
        server.create(node_json("b"))
        async with extender_for(server, FAST, synced=True, files=server_files) as rig:
            pod = rig.add_pod("p")
            await rig.filter(pod, "a")
            await rig.bind_without_an_answer(pod, "a", "before")
            assert "may have been written already" in await rig.bind(pod, "b")
        server_files.close()
        (left,) = JournalFiles(tmp_path).left
        assert left.node == "a"


async def test_a_refused_binding_ties_the_pod_to_nothing() -> None:
    """However often: neither to the node, nor to the GPUs that it is promised there anew."""
    async with running(node_json("a", replicas=1), node_json("b", replicas=1)) as rig:
        pod, other = rig.add_pod("p"), rig.add_pod("other")
        for _ in range(2):
            assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
            rig.server.inject(Fault(subresource="binding", status=403, times=1))
            assert "403" in await rig.bind(pod, "a")
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        assert (await rig.filter(pod, "b"))["NodeNames"] == ["b"]
        assert (await rig.filter(other, "a"))["NodeNames"] == ["a"]


async def test_many_binds_on_one_immediate_node_all_succeed() -> None:
    async with running(IMMEDIATE) as rig:
        pods = [rig.add_pod(f"p{n}") for n in range(8)]
        binds = [asyncio.create_task(rig.bind(pod, "n")) for pod in pods]

        async def served() -> bool:
            for pod in rig.server.store.objects("pods"):
                if pod["metadata"].get("annotations", {}).get(keys.BIND_PHASE) == "allocating":
                    rig.set_phase(pod["metadata"]["name"], "success")
            return all(bind.done() for bind in binds)

        await until(served)
        assert [bind.result() for bind in binds] == [""] * 8


async def test_events_tell_of_the_bind() -> None:
    async with running(node_json("n")) as rig:
        assert await rig.bind(rig.add_pod("p"), "n") == ""

        async def told() -> bool:
            return [(e["reason"], e["type"], e["message"]) for e in rig.server.store.objects("events")] == [
                ("BindingSucceed", "Normal", "Successfully binding node [n] to default/p")
            ]

        await until(told)


async def test_an_immediate_node_is_told_that_the_pod_is_allocating_and_the_lock_remembers_its_uid() -> None:
    async with running(IMMEDIATE) as rig:
        pod = rig.add_pod("p")
        assert await rig.bind(pod, "n") == ""
        assert rig.pod("p")["metadata"]["annotations"][keys.BIND_PHASE] == "allocating"
        node = rig.server.store.get("nodes", "", "n")
        assert node is not None
        assert node["metadata"]["annotations"][keys.NODE_LOCK_UID] == f"{rig.lock('n')},{pod['metadata']['uid']}"


async def test_a_pod_created_anew_does_not_own_the_lock_of_its_namesake() -> None:
    async with running(IMMEDIATE) as rig:
        lock = encode_lock(NodeLock(taken_at=now(), namespace="default", pod="p"))
        beside = {keys.NODE_LOCK: lock, keys.NODE_LOCK_UID: encode_lock_uid(lock, "uid-of-the-one-before")}
        rig.server.patch("nodes", "n", {"metadata": {"annotations": beside}})
        pod = rig.add_pod("p")
        assert await rig.bind(pod, "n") == ""
        node = rig.server.store.get("nodes", "", "n")
        assert node is not None
        assert node["metadata"]["annotations"][keys.NODE_LOCK_UID].endswith("," + pod["metadata"]["uid"])


async def test_kube_scheduler_that_repeats_a_failed_bind_at_once_waits_longer_each_time() -> None:
    async with running(node_json("n")) as rig:
        pod = pod_json("p")
        pod["metadata"] |= {"labels": {KUEUE_GROUP: "g"}, "annotations": {KUEUE_SIZE: "2"}}
        pod = rig.server.create(pod)
        await rig.filter(pod, "n")
        rig.server.inject(Fault(subresource="binding", status=422, times=3))
        began = time.monotonic()
        assert all([await rig.bind(pod, "n") for _ in range(3)])
        assert time.monotonic() - began >= 0.2 + 0.4
        assert await rig.bind(pod, "n") == ""
