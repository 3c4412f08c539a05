"""`/filter`, health and bad input, over real HTTP."""

import asyncio
import logging
import re
from dataclasses import replace

import pytest

from proto.annotations import keys
from simulation.apiserver import EmbeddedApiServer
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import FAST, extender_for, running


async def test_filter_by_names_answers_one_node_and_all_five_keys() -> None:
    async with running(node_json("a"), node_json("b")) as rig:
        answer = await rig.filter(pod_json("p"), "a", "b", "nowhere")
        assert answer == {
            "Nodes": None,
            "NodeNames": ["a"],
            "FailedNodes": None,
            "FailedAndUnresolvableNodes": None,
            "Error": "",
        }
        assert rig.writes() == []


async def test_filter_says_of_each_node_why_it_does_not_fit() -> None:
    async with running(node_json("small", memory_mib=500), node_json("full", replicas=1)) as rig:
        assert (await rig.filter(pod_json("first"), "full"))["NodeNames"] == ["full"]
        answer = await rig.filter(pod_json("p"), "full", "small", "nowhere")
        assert answer == {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {"full": "CardTimeSlicingExhausted"},
            "FailedAndUnresolvableNodes": {"small": "CardInsufficientMemory", "nowhere": "node unregistered"},
            "Error": "",
        }


async def test_filter_by_nodes_decides_as_if_nothing_ran_and_reserves_nothing() -> None:
    async with running(node_json("a", replicas=1)) as rig:
        assert (await rig.filter(pod_json("first"), "a"))["NodeNames"] == ["a"]
        for name in ("second", "third"):
            unreadable = node_json("unreadable")
            unreadable["metadata"]["annotations"][keys.NODE_REGISTER] = "[{"
            nodes = [node_json("a", replicas=1), {"metadata": {"name": "x"}}, unreadable, node_json("b")]
            answer = await rig.post("/filter", {"Pod": pod_json(name), "Nodes": {"items": nodes}})
            assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["a", "b"]
            assert answer["NodeNames"] is None
            assert answer["FailedAndUnresolvableNodes"]["x"] == "node unregistered"
            assert keys.NODE_REGISTER in answer["FailedAndUnresolvableNodes"]["unreadable"]


async def test_filter_by_nodes_that_do_not_exist_yet_leaves_no_trace() -> None:
    """An autoscaler asks about copies of a node, with the GPUs of that node, before it creates any."""
    async with running(node_json("full", replicas=1)) as rig:
        holder, waiting = rig.add_pod("holder"), rig.add_pod("waiting")
        assert (await rig.filter(holder, "full"))["NodeNames"] == ["full"]
        before = await rig.status("/debug/snapshot")
        copies = [node_json("full", replicas=1) for _ in range(2)]
        for number, copy in enumerate(copies):
            copy["metadata"]["name"] = f"template-{number}"
        small = node_json("small", memory_mib=500)
        for pod in (holder, waiting, pod_json("nobody")):
            answer = await rig.post("/filter", {"Pod": pod, "Nodes": {"items": [*copies, small]}})
            assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["template-0", "template-1"]
            assert answer["FailedAndUnresolvableNodes"] == {"small": "CardInsufficientMemory"}
        for pod in (holder, waiting):
            pod["spec"]["containers"][0]["resources"]["limits"][keys.RESOURCE_MEMORY] = "many"
            answer = await rig.post("/filter", {"Pod": pod, "Nodes": {"items": copies}})
            assert answer["FailedAndUnresolvableNodes"].keys() == {"template-0", "template-1"}
        assert await rig.status("/debug/snapshot") == before
        by_name = await rig.filter(pod_json("late"), "full", "template-0")
        assert by_name["FailedNodes"] == {"full": "CardTimeSlicingExhausted"}
        assert by_name["FailedAndUnresolvableNodes"] == {"template-0": "node unregistered"}

        def of_events() -> set[str]:
            return {event["involvedObject"]["name"] for event in rig.server.store.objects("events")}

        await until(lambda: "late" in of_events())
        assert of_events() == {"holder", "late"}
        assert rig.writes() == []


async def test_debug_lines_tell_of_every_answer_and_every_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "scheduler_ext")
    caplog.set_level(logging.DEBUG, "proto")
    async with running(node_json("a")) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "a")
        await rig.filter(pod_json("cpu", gpus=0), "a", "b")
        await rig.post("/prioritize", {"Pod": pod, "NodeNames": ["a"]})
        await rig.post("/preempt", {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": []}}})
        await rig.bind(pod, "a")
    lines = [record.getMessage() for record in caplog.records]
    assert [re.sub(r"took \S+ ms", "took … ms", line) for line in lines if line.startswith("/")] == [
        "/filter of pod default/p took … ms: find fit node(a), 0 nodes not fit, 1 nodes fit(a:0.00)",
        "/filter of pod default/cpu took … ms: 2 nodes are offered",
        "/prioritize of pod default/p took … ms: 1 nodes scored",
        "/preempt of pod default/p took … ms: it helps on 0 of 1 nodes",
        "/bind of pod default/p took … ms: bound to node a",
    ]
    assert "POST /api/v1/namespaces/default/pods/p/binding?timeout=30s: 201" in lines


@pytest.mark.parametrize("gpus", [0, 1])
async def test_nodes_are_answered_with_all_that_was_written_of_them(gpus: int) -> None:
    node = node_json("a")
    node["spec"] = {"providerID": "cloud://a", "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "now"}]}
    node["status"]["images"] = [{"names": ["work"], "sizeBytes": 7}]
    async with running() as rig:
        answer = await rig.post("/filter", {"Pod": pod_json("p", gpus=gpus), "Nodes": {"items": [node]}})
        assert answer["Nodes"]["items"] == [node]


async def test_a_pod_without_gpus_passes_even_before_the_sync() -> None:
    async with EmbeddedApiServer() as server:
        await server.go_offline()
        async with extender_for(server, FAST, synced=False) as rig:
            answer = await rig.filter(pod_json("p", gpus=0), "a", "b")
            assert answer["NodeNames"] == ["a", "b"]
            by_nodes = await rig.post("/filter", {"Pod": pod_json("p", gpus=0), "Nodes": {"items": [node_json("n")]}})
            assert [node["metadata"]["name"] for node in by_nodes["Nodes"]["items"]] == ["n"]


async def test_without_a_sync_readyz_is_503_and_filter_says_what_is_missing_in_bounded_time() -> None:
    async with EmbeddedApiServer() as server:
        await server.go_offline()
        async with extender_for(server, FAST, synced=False) as rig:
            assert await rig.status("/healthz") == (200, "")
            assert await rig.status("/readyz") == (
                503,
                "waiting for the first list of nodes, pods, resourcequotas\n",
            )
            answer = await rig.filter(pod_json("p"), "a")
            assert answer["Error"] == "not ready: the API server has not listed nodes, pods, resourcequotas yet"
            await server.go_online()

            async def ready() -> bool:
                return (await rig.status("/readyz"))[0] == 200

            await until(ready)


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/filter", b"", "$: "),
        ("/filter", b"{", "$: "),
        ("/filter", b"[]", "$: "),
        ("/filter", b'{"NodeNames": ["a"]}', "$.Pod: missing"),
        ("/filter", b'{"Pod": {"spec": {"containers": 7}}, "NodeNames": ["a"]}', "$.Pod.spec.containers"),
        ("/filter", b'{"Pod": {}, "NodeNames": [1]}', "$.NodeNames[0]"),
        ("/bind", b'{"PodName": "p", "PodNamespace": "n"}', "$.Node: missing"),
    ],
)
async def test_a_body_of_the_wrong_shape_is_400_with_the_field(path: str, body: bytes, where: str) -> None:
    async with running() as rig, rig.http.post(rig.url + path, data=body) as response:
        assert response.status == 400
        assert (await response.text()).startswith(where)


async def test_neither_nodes_nor_names_is_an_error_in_the_answer() -> None:
    async with running() as rig:
        answer = await rig.post("/filter", {"Pod": pod_json("p"), "Nodes": None, "NodeNames": None})
        assert answer["Error"] == "neither Nodes nor NodeNames are given"


async def test_a_pod_that_no_node_can_serve_as_it_is_written_is_refused_by_each_and_not_as_an_error() -> None:
    """kube-scheduler tries a pod again and again after an error; one that every node refuses waits until it changes."""
    async with running(node_json("a"), node_json("b")) as rig:
        pod = rig.add_pod("p")
        pod["spec"]["containers"][0]["resources"]["limits"][keys.RESOURCE_MEMORY] = "many"
        answer = await rig.filter(pod, "a", "b")
        problem = "container main: nvidia.com/gpumem: expected a quantity such as 1, 500m, 4k or 1Gi, found 'many'"
        assert answer["FailedAndUnresolvableNodes"] == {"a": problem, "b": problem}
        assert (answer["Error"], answer["NodeNames"], answer["FailedNodes"]) == ("", None, None)

        async def told() -> bool:
            return [e["message"] for e in rig.server.store.objects("events")] == [problem]

        await until(told)


async def test_a_body_of_many_megabytes_is_read() -> None:
    async with running(node_json("a")) as rig:
        pod = pod_json("p")
        pod["metadata"]["annotations"] = {"filler": "x" * 8_000_000}
        assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]


async def test_filtering_again_replaces_the_pods_own_reservation() -> None:
    async with running(node_json("a", replicas=1)) as rig:
        for _ in range(3):
            assert (await rig.filter(pod_json("p"), "a"))["NodeNames"] == ["a"]
        assert (await rig.filter(pod_json("q"), "a"))["NodeNames"] is None


async def test_concurrent_filters_never_book_more_than_a_node_has() -> None:
    async with running(node_json("a", gpus=2, replicas=3), node_json("b", gpus=1, replicas=4, memory_mib=3000)) as rig:
        answers = await asyncio.gather(*(rig.filter(pod_json(f"p{n}"), "a", "b") for n in range(60)))
        picked = [answer["NodeNames"][0] for answer in answers if answer["NodeNames"]]
        assert (picked.count("a"), picked.count("b")) == (6, 3)


async def test_a_reservation_lapses_when_no_bind_follows() -> None:
    async with running(node_json("a", replicas=1), reservation_lease_seconds=0.2) as rig:
        assert (await rig.filter(pod_json("p"), "a"))["NodeNames"] == ["a"]

        async def free() -> bool:
            return bool((await rig.filter(pod_json("q"), "a"))["NodeNames"])

        await until(free)


async def test_a_caller_that_does_not_wait_for_its_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedApiServer() as server:
        await server.go_offline()
        async with extender_for(server, replace(FAST, sync_wait_seconds=1.0), synced=False) as rig:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await rig.filter(pod_json("p"), "a")

            async def counted() -> bool:
                async with rig.http.get(rig.metrics_url + "/metrics") as response:
                    return 'verb="filter"' in await response.text()

            await until(counted)
            assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_events_tell_of_each_reason_once_a_minute() -> None:
    async with running(node_json("a", memory_mib=500)) as rig:
        pod = rig.add_pod("p")
        for _ in range(5):
            await rig.filter(pod, "a")

        async def told() -> bool:
            return len(rig.server.store.objects("events")) > 0

        await until(told)
        (event,) = rig.server.store.objects("events")
        assert (event["reason"], event["type"], event["count"]) == ("FilteringFailed", "Warning", 1)
        assert event["message"] == "no available node, 1 nodes do not meet: 1 node (a): no GPU is that large"
        assert event["source"]["component"] == "topogpu-scheduler"
        assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]


async def test_a_node_that_is_named_again_and_again_is_scored_once() -> None:
    async with running(node_json("a"), node_json("b")) as rig:
        pod = rig.server.create(pod_json("p"))
        await rig.filter(pod, "a", "b")
        for verb in ("/prioritize", "/prioritize-without-gpus"):
            scored = await rig.post(verb, {"Pod": pod, "NodeNames": ["a", "b"] * 1000})
            assert [row["Host"] for row in scored] == ["a", "b"]
