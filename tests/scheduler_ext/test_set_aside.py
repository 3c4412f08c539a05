"""A whole extender sets a node aside: what it writes, what others see of it, and how it ends."""

from typing import Any

from proto.annotations.keys import SET_ASIDE
from proto.annotations.set_aside import SetAside, decode_set_aside
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running

LONG_AGO = "2020-01-01T00:00:00Z"
REFUSED = {"n": "NodeSetAside: set aside for pod default/large"}


def annotation(rig: Rig) -> SetAside | None:
    written = rig.pod("large")["metadata"].get("annotations", {}).get(SET_ASIDE)
    return None if written is None else decode_set_aside(written)


def created(rig: Rig, name: str, gpus: int, **metadata: Any) -> dict[str, Any]:
    made = pod_json(name, gpus=gpus, memory_mib=0)
    made["metadata"] |= metadata
    return rig.server.create(made)


def events(rig: Rig, reason: str) -> set[str]:
    found = rig.server.store.objects("events")
    return {each["involvedObject"]["name"] for each in found if each["reason"] == reason}


async def test_a_node_is_set_aside_on_the_pod_and_in_events_until_the_pod_is_deleted() -> None:
    async with running(node_json("n", gpus=2, replicas=1), set_aside_after_seconds=1.0) as rig:
        small = created(rig, "small", 1)
        assert (await rig.filter(small, "n"))["NodeNames"] == ["n"]
        assert await rig.bind(small, "n") == ""
        large = created(rig, "large", 2, creationTimestamp=LONG_AGO)
        assert not (await rig.filter(large, "n"))["NodeNames"]

        async def is_set_aside() -> bool:
            found = annotation(rig)
            return found is not None and found.node == "n"

        await until(is_set_aside)

        async def has_events() -> bool:
            return events(rig, "NodeSetAside") == {"n", "large"}

        await until(has_events)
        other = created(rig, "other", 1)
        assert (await rig.filter(other, "n"))["FailedAndUnresolvableNodes"] == REFUSED
        rig.server.delete("pods", "large", namespace="default")

        async def is_open() -> bool:
            return bool((await rig.filter(other, "n"))["NodeNames"])

        await until(is_open)
