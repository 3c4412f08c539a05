"""Annotations nobody can read are told to their owners, through a real API server."""

from typing import Any

import msgspec

from proto.annotations import keys
from proto.kubernetes.objects import Pod
from scheduler_ext.apiserver import trim_pod
from scheduler_ext.cluster.bound import read_bound
from scheduler_ext.cluster.pod_index import pod_entry
from scheduler_ext.requests import RequestSettings, read_request
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running


def warnings(rig: Rig, reason: str) -> list[dict[str, Any]]:
    return [event for event in rig.server.store.objects("events") if event["reason"] == reason]


async def told(rig: Rig, reason: str, times: int) -> list[dict[str, Any]]:
    async def enough() -> bool:
        return len(warnings(rig, reason)) >= times

    await until(enough)
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
        assert event["message"].endswith("; until it is corrected the GPUs that it may concern count as full")

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
        assert (await rig.filter(pod_json("p"), "broken"))["FailedAndUnresolvableNodes"]["broken"] == event["message"]


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


def test_a_trimmed_pod_is_smaller_and_means_the_same() -> None:
    written = bound_pod("p", "G0,NVIDIA,1000,10:;")
    written["metadata"]["labels"] = {"app": "x"}
    written["metadata"]["annotations"] |= {"example.com/note": "x", keys.GPU_POLICY: "mutex", keys.POD_NODE: "n"}
    written["spec"]["containers"][0] |= {"env": [{"name": "A", "value": "b"}], "args": ["x"]}
    term = {"topologyKey": "zone", "namespaceSelector": {}, "labelSelector": {"matchLabels": {"app": "x"}}}
    written["spec"] |= {
        "priorityClassName": "low",
        "activeDeadlineSeconds": 60,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "resources": {"requests": {"cpu": "1"}},
    }
    written["status"] = {"phase": "Running", "conditions": [{"type": "Ready"}], "containerStatuses": [{"name": "main"}]}
    whole, trimmed = (msgspec.convert(written, Pod) for _ in range(2))
    trim_pod(trimmed, labelled=True)
    assert trimmed.metadata.annotations.keys() == {keys.DEVICES_ALLOCATED, keys.GPU_POLICY, keys.POD_NODE}
    assert len(msgspec.json.encode(trimmed)) < len(msgspec.json.encode(whole))
    settings = RequestSettings()
    assert pod_entry(trimmed) == pod_entry(whole)
    assert read_bound(trimmed, settings.names) == read_bound(whole, settings.names)
    assert read_request(trimmed, settings) == read_request(whole, settings)


async def test_only_nodes_with_the_labels_asked_for_give_out_gpus() -> None:
    mine = node_json("mine")
    mine["metadata"]["labels"] = {"gpu": "on"}
    async with running(mine, node_json("other"), node_label_selector="gpu=on") as rig:
        answer = await rig.filter(pod_json("p"), "other", "mine")
        assert answer["NodeNames"] == ["mine"]
        rig.server.patch("nodes", "mine", {"metadata": {"labels": {"gpu": "off"}}})

        async def gone() -> bool:
            answer = await rig.filter(pod_json("q"), "mine")
            return bool(answer["FailedAndUnresolvableNodes"] == {"mine": "node unregistered"})

        await until(gone)


async def test_a_quota_with_a_scope_refuses_only_pods_in_it() -> None:
    """Also once pods have been seen by the watch, of which it keeps little."""
    low, high = "system-cluster-critical", "system-node-critical"
    async with running(node_json("n", gpus=4)) as rig:
        selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [low]}]}
        rig.server.create(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "low", "namespace": "default"},
                "spec": {"hard": {"limits.nvidia.com/gpumem": "1500"}, "scopeSelector": selector},
            }
        )

        async def seen() -> bool:
            return low in (await rig.status("/debug/snapshot"))[1]

        await until(seen)

        async def bound(name: str, priority: str) -> bool:
            asking = pod_json(name)
            asking["spec"]["priorityClassName"] = priority
            made = rig.server.create(asking)
            if not (await rig.filter(made, "n"))["NodeNames"]:
                return False
            assert await rig.bind(made, "n") == ""
            return True

        fits = [await bound(f"{priority}-{n}", priority) for n in range(2) for priority in (low, high)]
        assert fits == [True, True, False, True]
