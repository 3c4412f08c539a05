"""Annotations nobody can read are told to their owners, through a real API server."""

from typing import Any

from proto.annotations import keys
from tests.scheduler_ext.rig import Rig, eventually, node_json, pod_json, running


def warnings(rig: Rig, reason: str) -> list[dict[str, Any]]:
    return [event for event in rig.server.store.objects("events") if event["reason"] == reason]


async def told(rig: Rig, reason: str, times: int) -> list[dict[str, Any]]:
    async def enough() -> bool:
        return len(warnings(rig, reason)) >= times

    await eventually(enough)
    return warnings(rig, reason)


def bound_pod(name: str, devices: str) -> dict[str, Any]:
    pod = pod_json(name)
    pod["metadata"]["annotations"] = {keys.DEVICES_ALLOCATED: devices}
    pod["spec"]["nodeName"] = "n"
    return pod


def annotate(rig: Rig, plural: str, name: str, key: str, text: str) -> None:
    namespace = "default" if plural == "pods" else ""
    rig.server.patch(plural, name, {"metadata": {"annotations": {key: text}}}, namespace=namespace)


async def test_a_pod_with_an_unreadable_annotation_is_told_once_and_again_when_that_changes() -> None:
    async with running(node_json("n")) as rig:
        created = rig.server.create(bound_pod("p", "garbage"))
        (event,) = await told(rig, "UnreadableAllocation", 1)
        assert (event["type"], event["metadata"]["namespace"]) == ("Warning", "default")
        assert event["involvedObject"]["kind"] == "Pod"
        assert event["involvedObject"]["uid"] == created["metadata"]["uid"]
        assert keys.DEVICES_ALLOCATED in event["message"]
        assert event["message"].endswith("; until it is corrected the GPUs it may be about count as full")

        annotate(rig, "pods", "p", "example.com/other", "1")
        annotate(rig, "pods", "p", keys.DEVICES_ALLOCATED, "G0,NVIDIA,many,0:;")
        first, second = await told(rig, "UnreadableAllocation", 2)
        assert first["message"] != second["message"]

        rig.server.create(bound_pod("last", "garbage"))
        assert len(await told(rig, "UnreadableAllocation", 3)) == 3


async def test_what_the_first_list_shows_unreadable_is_told_as_well() -> None:
    broken = node_json("broken")
    broken["metadata"]["annotations"][keys.NODE_REGISTER] = "[{"
    async with running(node_json("n"), broken) as rig:
        (event,) = await told(rig, "UnreadableRegistration", 1)
        assert event["type"] == "Warning"
        assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "broken", "uid": "broken"}
        assert keys.NODE_REGISTER in event["message"]
        assert (await rig.filter(pod_json("p"), "broken"))["FailedNodes"]["broken"] == event["message"]


async def test_a_node_is_told_once_however_often_it_changes_and_not_for_a_plugin_that_is_away() -> None:
    away = node_json("away")
    away["status"]["allocatable"][keys.RESOURCE_COUNT] = "0"
    async with running(node_json("n"), away) as rig:
        annotate(rig, "nodes", "n", keys.NODE_REGISTER, "[{")
        await told(rig, "UnreadableRegistration", 1)
        for count in range(3):
            annotate(rig, "nodes", "n", "example.com/other", str(count))
        annotate(rig, "nodes", "n", keys.NODE_REGISTER, "7")
        events = await told(rig, "UnreadableRegistration", 2)
        assert [event["involvedObject"]["name"] for event in events] == ["n", "n"]
