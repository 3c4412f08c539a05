"""What becomes of an object that is written: identity, defaults, patches, Bindings and deletions."""

import re
from typing import Any

import pytest

from tests.cluster.peers import Peer
from tests.conformance.objects import (
    ANOTHER_UID,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    JsonObject,
    a_binding,
    a_pod,
    names,
    refused,
)


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


async def patched(peer: Peer, path: str, document: object, media_type: str = MERGE) -> JsonObject:
    status, answer = await peer.send("PATCH", path, document, media_type)
    assert status == 200, answer
    return answer


def conditions(pod: JsonObject) -> list[tuple[str, str]]:
    return [(one["type"], one["status"]) for one in pod["status"]["conditions"]]


async def test_a_created_pod_has_an_identity_and_the_defaults(peer: Peer, pods: str, namespace: str) -> None:
    pod = await peer.create(pods, a_pod("p", uid=ANOTHER_UID))
    metadata, spec = pod["metadata"], pod["spec"]
    assert (pod["kind"], pod["apiVersion"], metadata["namespace"]) == ("Pod", "v1", namespace)
    assert metadata["uid"] not in {"", ANOTHER_UID}
    assert int(metadata["resourceVersion"]) > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    defaults = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "enableServiceLinks": True,
        "securityContext": {},
    }
    assert {key: spec[key] for key in defaults} == defaults
    assert [one["key"] for one in spec["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


async def test_a_field_that_nobody_knows_and_one_that_the_server_keeps_do_not_keep_an_object_out(
    peer: Peer, pods: str
) -> None:
    pod = a_pod("p", managedFields=[])
    made = await peer.create(pods, pod | {"bogus": 1, "spec": pod["spec"] | {"bogus": {"a": []}}})
    made["metadata"]["labels"] = {"a": "b"}
    status, again = await peer.send("PUT", f"{pods}/p", made)
    assert (status, again["metadata"]["labels"]) == (200, {"a": "b"})


async def test_an_image_without_a_fixed_tag_is_always_pulled(peer: Peer, pods: str) -> None:
    policies = {}
    for number, image in enumerate(("a:1", "a", "a:latest", "example.com:5000/a", "a@sha256:" + "0" * 64)):
        container = {"name": "c", "image": image}
        made = await peer.create(pods, {"metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}})
        policies[image[:20]] = made["spec"]["containers"][0]["imagePullPolicy"]
    assert list(policies.values()) == ["IfNotPresent", "Always", "Always", "Always", "IfNotPresent"]


async def test_quantities_are_answered_in_their_shortest_form(peer: Peer, pods: str) -> None:
    limits = {"cpu": 0.5, "memory": "1024Mi", "nvidia.com/gpu": 2, "nvidia.com/gpumem": "1000"}
    pod = await peer.create(pods, a_pod("p", limits=limits))
    kept = {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "2", "nvidia.com/gpumem": "1k"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": kept, "requests": kept}
    assert pod["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("0", "0"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("1536Mi", "1536Mi"),
        ("512", "512"),
        ("1e9", "1e9"),
        ("12e8", "1200e6"),
        ("1000M", "1G"),
        ("1000000", "1M"),
        ("1023Ki", "1023Ki"),
        ("1024", "1024"),
        ("0.5Ki", "512"),
        ("1500m", "1500m"),
    ],
)
async def test_a_quantity_keeps_its_base_and_takes_the_largest_suffix(
    peer: Peer, pods: str, written: str, kept: str
) -> None:
    pod = await peer.create(pods, a_pod("p", limits={"memory": written}))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": kept}


async def test_a_generated_name_continues_the_given_one(peer: Peer, pods: str) -> None:
    made = [await peer.create(pods, {"metadata": {"generateName": "p-"}, "spec": a_pod("")["spec"]}) for _ in range(2)]
    found = [one["metadata"]["name"] for one in made]
    assert all(re.fullmatch(r"p-[a-z0-9]{5}", name) for name in found)
    assert len(set(found)) == 2


async def test_a_gated_pod_says_that_it_waits(peer: Peer, pods: str) -> None:
    spec = a_pod("")["spec"] | {"schedulingGates": [{"name": "example.com/g"}]}
    pod = await peer.create(pods, {"metadata": {"name": "p"}, "spec": spec})
    assert conditions(pod) == [("PodScheduled", "False")]
    assert pod["status"]["conditions"][0]["reason"] == "SchedulingGated"
    opened = await patched(peer, f"{pods}/p", {"spec": {"schedulingGates": None}})
    assert "schedulingGates" not in opened["spec"]


async def test_null_removes_and_what_is_not_named_stays(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p", annotations={"a": "1", "b": "2"}, labels={"c": "3"}))
    pod = await patched(peer, f"{pods}/p", {"metadata": {"annotations": {"a": None, "d": "4", "absent": None}}})
    assert (pod["metadata"]["annotations"], pod["metadata"]["labels"]) == ({"b": "2", "d": "4"}, {"c": "3"})
    pod = await patched(peer, f"{pods}/p", {"metadata": {"annotations": {"b": None, "d": None}}})
    assert "annotations" not in pod["metadata"]


async def test_a_merge_patch_replaces_a_list_and_the_defaults_come_back(peer: Peer, pods: str) -> None:
    before = await peer.create(pods, a_pod("p"))
    containers = [{"name": "main", "image": "example.com/work:2"}]
    after = await patched(peer, f"{pods}/p", {"spec": {"containers": containers}})
    assert after["spec"]["containers"] == [before["spec"]["containers"][0] | {"image": "example.com/work:2"}]


async def test_a_strategic_patch_merges_containers_by_name(peer: Peer, pods: str) -> None:
    before = await peer.create(pods, a_pod("p", limits={"cpu": "1"}))
    containers = [{"name": "main", "image": "example.com/work:2"}]
    after = await patched(peer, f"{pods}/p", {"spec": {"containers": containers}}, STRATEGIC)
    assert after["spec"]["containers"] == [before["spec"]["containers"][0] | {"image": "example.com/work:2"}]


async def test_a_strategic_patch_merges_conditions_by_type_and_puts_its_own_first(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p"))
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    pod = await patched(peer, f"{pods}/p/status", ready, STRATEGIC)
    assert conditions(pod) == [("Ready", "True")]
    assert pod["status"]["conditions"][0] == {
        "type": "Ready",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": None,
    }
    more = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "False"}]
    pod = await patched(peer, f"{pods}/p/status", {"status": {"conditions": more}}, STRATEGIC)
    assert conditions(pod) == [("Initialized", "True"), ("Ready", "False")]
    pod = await patched(
        peer, f"{pods}/p/status", {"status": {"conditions": [{"type": "New", "status": "True"}]}}, STRATEGIC
    )
    assert conditions(pod) == [("New", "True"), ("Initialized", "True"), ("Ready", "False")]
    gone = {"status": {"conditions": [{"type": "Initialized", "$patch": "delete"}]}}
    pod = await patched(peer, f"{pods}/p/status", gone, STRATEGIC)
    assert conditions(pod) == [("New", "True"), ("Ready", "False")]


async def test_a_strategic_patch_adds_and_removes_single_finalizers(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p", finalizers=["example.com/a"]))
    added = await patched(peer, f"{pods}/p", {"metadata": {"finalizers": ["example.com/b"]}}, STRATEGIC)
    assert added["metadata"]["finalizers"] == ["example.com/b", "example.com/a"]
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/b"]}}
    removed = await patched(peer, f"{pods}/p", removal, STRATEGIC)
    assert removed["metadata"]["finalizers"] == ["example.com/a"]
    await patched(peer, f"{pods}/p", {"metadata": {"finalizers": None}})


async def test_a_json_patch_escapes_slashes_in_keys(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p"))
    operations: list[dict[str, Any]] = [
        {"op": "add", "path": "/metadata/annotations", "value": {"example.com/a": "1"}},
        {"op": "test", "path": "/metadata/annotations/example.com~1a", "value": "1"},
        {"op": "replace", "path": "/metadata/annotations/example.com~1a", "value": "2"},
    ]
    pod = await patched(peer, f"{pods}/p", operations, JSON_PATCH)
    assert pod["metadata"]["annotations"] == {"example.com/a": "2"}


async def test_status_and_spec_are_written_apart_and_metadata_with_both(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p"))
    pod = await patched(peer, f"{pods}/p", {"status": {"phase": "Running"}})
    assert pod["status"]["phase"] == "Pending"
    both = {"metadata": {"annotations": {"a": "1"}}, "status": {"phase": "Running"}, "spec": {"nodeName": "n"}}
    pod = await patched(peer, f"{pods}/p/status", both)
    assert (pod["status"]["phase"], pod["metadata"]["annotations"]) == ("Running", {"a": "1"})
    assert "nodeName" not in pod["spec"]


async def test_a_replacement_without_a_version_is_unconditional(peer: Peer, pods: str) -> None:
    pod = await peer.create(pods, a_pod("p"))
    await patched(peer, f"{pods}/p", {"metadata": {"labels": {"lost": "yes"}}})
    del pod["metadata"]["resourceVersion"], pod["metadata"]["namespace"]
    pod["metadata"]["labels"] = {"put": "yes"}
    status, replaced = await peer.send("PUT", f"{pods}/p", pod)
    assert (status, replaced["metadata"]["labels"]) == (200, {"put": "yes"})


async def test_what_the_server_decides_cannot_be_patched_away(peer: Peer, pods: str) -> None:
    before = await peer.create(pods, a_pod("p"))
    after = await patched(peer, f"{pods}/p", {"metadata": {"creationTimestamp": "2000-01-01T00:00:00Z"}})
    assert after["metadata"]["creationTimestamp"] == before["metadata"]["creationTimestamp"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_binding_merges_annotations_and_says_that_the_pod_is_scheduled(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p", annotations={"kept": "1", "changed": "1"}))
    await peer.create(f"{pods}/p/binding", a_binding("p", annotations={"changed": "2", "new": "2"}))
    _, pod = await peer.send("GET", f"{pods}/p")
    assert pod["metadata"]["annotations"] == {"kept": "1", "changed": "2", "new": "2"}
    assert (pod["spec"]["nodeName"], conditions(pod)) == ("some-node", [("PodScheduled", "True")])


async def test_the_collection_of_bindings_takes_the_name_from_the_object(peer: Peer, pods: str, namespace: str) -> None:
    await peer.create(pods, a_pod("p"))
    await peer.create(f"/api/v1/namespaces/{namespace}/bindings", a_binding("p"))
    assert (await peer.send("GET", f"{pods}/p"))[1]["spec"]["nodeName"] == "some-node"


async def test_only_a_bound_pod_gets_time_to_stop_and_it_can_only_be_shortened(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("free"))
    status, gone = await peer.send("DELETE", f"{pods}/free")
    assert (status, gone["metadata"]["deletionGracePeriodSeconds"]) == (200, 0)
    assert (await refused(peer, "GET", f"{pods}/free"))[0] == 404
    await peer.create(pods, a_pod("bound", node="some-node"))
    seconds = []
    for query in ("", "", "?gracePeriodSeconds=50", "?gracePeriodSeconds=5", "?gracePeriodSeconds=-1"):
        status, pod = await peer.send("DELETE", f"{pods}/bound{query}")
        assert (status, "deletionTimestamp" in pod["metadata"]) == (200, True)
        seconds.append(pod["metadata"]["deletionGracePeriodSeconds"])
    assert seconds == [30, 30, 30, 5, 1]
    assert (await peer.send("DELETE", f"{pods}/bound?gracePeriodSeconds=0"))[0] == 200
    assert (await refused(peer, "GET", f"{pods}/bound"))[0] == 404


async def test_a_finished_pod_needs_no_time_to_stop(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p", node="some-node"))
    await patched(peer, f"{pods}/p/status", {"status": {"phase": "Succeeded"}})
    await peer.send("DELETE", f"{pods}/p")
    assert (await refused(peer, "GET", f"{pods}/p"))[0] == 404


async def test_an_object_with_a_finalizer_waits_until_it_is_removed(peer: Peer, pods: str) -> None:
    await peer.create(pods, a_pod("p", finalizers=["example.com/stay"]))
    _, leaving = await peer.send("DELETE", f"{pods}/p")
    assert leaving["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["example.com/stay", "example.com/new"]}}
    fields = {"kind": "Pod", "name": "p", "fields": [("metadata.finalizers", "FieldValueForbidden")]}
    assert await refused(peer, "PATCH", f"{pods}/p", more, MERGE) == (422, "Invalid", fields)
    last = await patched(peer, f"{pods}/p", {"metadata": {"finalizers": None}})
    assert last["metadata"]["name"] == "p"
    assert (await refused(peer, "GET", f"{pods}/p"))[0] == 404


async def test_a_collection_is_deleted_by_its_selector(peer: Peer, pods: str) -> None:
    for name in ("a", "b"):
        await peer.create(pods, a_pod(name, labels={"name": name}))
    status, answer = await peer.send("DELETE", f"{pods}?labelSelector=name%3Da")
    assert (status, answer["kind"], names(answer)) == (200, "PodList", ["a"])
    assert names((await peer.send("GET", pods))[1]) == ["b"]


async def test_an_evicted_pod_is_deleted(peer: Peer, pods: str, namespace: str) -> None:
    await peer.create(pods, a_pod("p"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": namespace}}
    status, answer = await peer.send("POST", f"{pods}/p/eviction", eviction)
    assert (status, answer["status"]) == (201, "Success")
    assert (await refused(peer, "GET", f"{pods}/p"))[0] == 404


async def test_a_pod_takes_the_priority_of_its_class(peer: Peer, pods: str, namespace: str) -> None:
    created = await peer.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": namespace}, "value": 5}
    )
    assert created["preemptionPolicy"] == "PreemptLowerPriority"
    for name, value in ((namespace, 5), ("system-node-critical", 2_000_001_000)):
        spec = a_pod("")["spec"] | {"priorityClassName": name}
        pod = await peer.create(pods, {"metadata": {"name": f"p{value}"}, "spec": spec})
        assert pod["spec"]["priority"] == value
    await peer.send("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{namespace}")
