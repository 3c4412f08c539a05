"""The extender's half of other GPU memory, over HTTP; the daemon's half is played here."""

import time
from typing import Any

from proto.annotations import keys
from proto.annotations.memory_resize import ResizeAnswer, ResizeState, answer_in, encode_answer
from scheduler_ext.resizer import EVENT_SECONDS
from simulation.apiserver import Fault
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running

NODE = node_json("n", memory_mib=10_000)


async def bound(rig: Rig, name: str, memory_mib: int) -> dict[str, Any]:
    pod = rig.add_pod(name, memory_mib=memory_mib)
    assert (await rig.filter(pod, "n"))["NodeNames"] == ["n"]
    assert await rig.bind(pod, "n") == ""
    return pod


def annotations(rig: Rig, name: str) -> dict[str, str]:
    found: dict[str, str] = rig.pod(name)["metadata"].get("annotations", {})
    return found


def wish(rig: Rig, name: str, text: str, state: str = "ready") -> None:
    """Somebody wishes it, and the daemon answers; both at once."""
    answer = encode_answer(ResizeAnswer(wish=text, state=ResizeState(state)))
    changed = {keys.MEMORY_WISH: text, keys.MEMORY_RESIZE: answer}
    rig.server.patch("pods", name, {"metadata": {"annotations": changed}}, namespace="default")


def state(rig: Rig, name: str) -> str:
    answer = answer_in(annotations(rig, name))
    return "" if answer is None else answer.state.value


def memory(rig: Rig, name: str) -> int:
    return int(annotations(rig, name)[keys.DEVICES_ALLOCATED].split(",")[2])


def events(rig: Rig) -> list[tuple[str, str]]:
    found = [(event["reason"], event["message"]) for event in rig.server.store.objects("events")]
    return [each for each in found if each[0].startswith("GPUMemory")]


async def test_a_pod_that_grows_is_counted_first_and_gets_it_in_the_second_write() -> None:
    async with running(NODE) as rig:
        await bound(rig, "p", 4000)
        wish(rig, "p", "9000")
        await until(lambda: memory(rig, "p") == 9000)
        assert state(rig, "p") == "growing"
        assert (await rig.filter(rig.add_pod("q", memory_mib=1001), "n"))["NodeNames"] is None
        assert (await rig.filter(rig.add_pod("r", memory_mib=1000), "n"))["NodeNames"] == ["n"]
        assert [each[:2] for each in rig.writes()].count(("patch", "pods")) == 2


async def test_a_pod_that_shrinks_gives_its_memory_to_one_that_waits() -> None:
    async with running(NODE) as rig:
        await bound(rig, "p", 9000)
        waiting = rig.add_pod("q", memory_mib=5000)
        assert (await rig.filter(waiting, "n"))["NodeNames"] is None
        wish(rig, "p", "5000")
        await until(lambda: (memory(rig, "p"), state(rig, "p")) == (5000, "done"))
        await until(lambda: keys.REQUEUE in annotations(rig, "q"))
        assert (await rig.filter(waiting, "n"))["NodeNames"] == ["n"]
        await until(lambda: events(rig) == [("GPUMemoryResized", "GPU memory changed as wished (5000)")])


async def test_growth_beyond_the_gpu_is_refused_with_a_sentence() -> None:
    async with running(NODE) as rig:
        await bound(rig, "p", 4000)
        await bound(rig, "q", 4000)
        wish(rig, "p", "6001")
        await until(lambda: state(rig, "p") == "refused")
        answer = answer_in(annotations(rig, "p"))
        assert answer is not None
        assert answer.why == (
            "GPU 0 (GPU-n-0) of node n has 10000 MiB, of which 4000 MiB are taken beside this pod: it cannot have 6001 "
            "MiB"
        )


async def test_a_quota_limits_growth() -> None:
    async with running(NODE) as rig:
        quota = {"hard": {"limits.nvidia.com/gpumem": "5000"}}
        rig.server.create({"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": quota})
        await bound(rig, "p", 4000)

        async def limits() -> bool:
            return (await rig.filter(rig.add_pod("x", memory_mib=1001), "n"))["NodeNames"] is None

        await until(limits)
        wish(rig, "p", "5001")
        await until(lambda: events(rig))
        assert events(rig)[0] == (
            "GPUMemoryNotResized",
            "GPU memory stays as it is, though 5001 was wished: the quota of namespace default is 5000 MiB of GPU "
            "memory, of which 0 MiB are taken beside this pod: it cannot have 5001 MiB",
        )
        wish(rig, "p", "5000")
        await until(lambda: memory(rig, "p") == 5000)


async def test_a_wish_that_changes_all_the_time_makes_no_more_than_one_event_a_second() -> None:
    async with running(NODE) as rig:
        await bound(rig, "p", 4000)
        began = time.monotonic()
        for number in range(30):
            text = str(20_000 + number)
            wish(rig, "p", text)
            await until(lambda: state(rig, "p") == "refused")
        await until(lambda: any(text in message for _, message in events(rig)))
        assert len(events(rig)) <= 2 + (time.monotonic() - began) / EVENT_SECONDS


async def test_a_write_that_has_no_answer_is_decided_again() -> None:
    async with running(NODE) as rig:
        await bound(rig, "p", 4000)
        rig.server.inject(Fault(verbs=frozenset({"patch"}), name="p", drop="before", times=1))
        wish(rig, "p", "9000")
        await until(lambda: memory(rig, "p") == 9000)


async def test_a_successor_goes_on_where_another_replica_stopped() -> None:
    async with running(NODE) as rig:
        await bound(rig, "p", 4000)
        wish(rig, "p", "9000", state="growing")
        await until(lambda: memory(rig, "p") == 9000)


async def test_where_no_daemon_can_answer_the_extender_refuses() -> None:
    async with running(node_json("n", allocation="immediate")) as rig:
        shares = {keys.DEVICES_ALLOCATED: "GPU-n-0,NVIDIA,1000,0:;", keys.MEMORY_WISH: "2000"}
        rig.server.create(pod_json("p", node_name="n", annotations=shares))
        await until(lambda: state(rig, "p") == "refused")
        await until(lambda: "does not allocate by slots" in str(events(rig)))
