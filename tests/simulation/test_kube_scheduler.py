from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proto.kubernetes.client import ApiServer
from simulation.apiserver import EmbeddedApiServer
from simulation.kube_scheduler import MANAGED_RESOURCES, KubeSchedulerStandIn
from tests.builders import as_json, node, pod_json
from tests.daemonset import shipped
from tests.polling import until


class Extender:
    """An extender on a real port that picks the last node, or answers what `reply` says."""

    def __init__(self, api: EmbeddedApiServer) -> None:
        self.api, self.filtered, self.url = api, list[dict[str, Any]](), ""
        self.reply: Callable[[dict[str, Any]], dict[str, Any]] = lambda args: {"NodeNames": args["NodeNames"][-1:]}

    async def filter(self, request: web.Request) -> web.Response:
        args = await request.json()
        self.filtered.append(args)
        return web.json_response(self.reply(args))

    async def bind(self, request: web.Request) -> web.Response:
        args = await request.json()
        binding = {"metadata": {"name": args["PodName"]}, "target": {"name": args["Node"]}}
        url = f"{self.api.url}/api/v1/namespaces/{args['PodNamespace']}/pods/{args['PodName']}/binding"
        async with aiohttp.ClientSession() as session, session.post(url, json=binding) as response:
            return web.json_response({"Error": "" if response.status == 201 else await response.text()})


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApiServer]:
    async with EmbeddedApiServer() as server:
        yield server


@pytest.fixture
async def client(api: EmbeddedApiServer, tmp_path: Path) -> AsyncIterator[ApiServer]:
    (tmp_path / "kubeconfig").write_text(api.kubeconfig())
    client = await ApiServer.connect(str(tmp_path / "kubeconfig"))
    yield client
    await client.close()


@pytest.fixture
async def extender(api: EmbeddedApiServer) -> AsyncIterator[Extender]:
    served = Extender(api)
    application = web.Application()
    application.router.add_post("/filter", served.filter)
    application.router.add_post("/bind", served.bind)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


def stored(api: EmbeddedApiServer, name: str) -> dict[str, Any]:
    return api.store.get("pods", "default", name) or {}


async def test_pods_are_bound_by_priority_to_ready_nodes_only(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender
) -> None:
    for one in (as_json(node("n1", ready=True)), as_json(node("n2", ready=True)), as_json(node("n3", ready=False))):
        api.create(one)
    api.create({"kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 5})
    for one in (
        pod_json("low"),
        pod_json("high", priority_class_name="urgent"),
        pod_json("other", scheduler_name="else"),
    ):
        api.create(one)
    async with KubeSchedulerStandIn(client, extender.url):
        await until(lambda: all(stored(api, name)["spec"].get("nodeName") == "n2" for name in ("low", "high")))
    assert [args["Pod"]["metadata"]["name"] for args in extender.filtered] == ["high", "low"]
    assert extender.filtered[0]["NodeNames"] == ["n1", "n2"]
    assert extender.filtered[0]["Nodes"] is None
    assert extender.filtered[0]["Pod"]["spec"]["terminationGracePeriodSeconds"] == 30
    assert "nodeName" not in stored(api, "other")["spec"]


async def test_a_pod_that_fits_nowhere_is_explained_and_tried_again_when_nodes_change(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender
) -> None:
    api.create(as_json(node("n1", ready=True)))
    api.create(pod_json("a"))
    extender.reply = lambda args: {"FailedNodes": dict.fromkeys(args["NodeNames"], "1/1 CardInsufficientMemory")}
    async with KubeSchedulerStandIn(client, extender.url):
        await until(lambda: api.store.objects("events"))
        [condition] = stored(api, "a")["status"]["conditions"]
        assert (condition["reason"], condition["status"]) == ("Unschedulable", "False")
        assert condition["message"] == "0/1 nodes are available: 1 1/1 CardInsufficientMemory."
        assert api.store.objects("events")[0]["reason"] == "FailedScheduling"
        extender.reply = lambda args: {"NodeNames": args["NodeNames"]}
        api.create(as_json(node("n2", ready=True)))
        await until(lambda: stored(api, "a")["spec"].get("nodeName"))


async def test_a_node_that_was_not_asked_about_is_an_error(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender
) -> None:
    api.create(as_json(node("n1", ready=True)))
    api.create(pod_json("a"))
    extender.reply = lambda _: {"NodeNames": ["elsewhere"]}
    async with KubeSchedulerStandIn(client, extender.url):
        await until(lambda: stored(api, "a")["status"].get("conditions"))
    assert stored(api, "a")["status"]["conditions"][0]["reason"] == "SchedulerError"


async def test_a_pod_without_gpus_is_bound_without_the_extender(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender
) -> None:
    api.create(as_json(node("n1", ready=True)))
    api.create(pod_json("a", gpus=0))
    async with KubeSchedulerStandIn(client, extender.url):
        await until(lambda: stored(api, "a")["spec"].get("nodeName") == "n1")
    assert extender.filtered == []


async def test_cpu_and_required_affinity_keep_a_pod_waiting_and_the_emptier_node_gets_one_without_gpus(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender
) -> None:
    for name in ("n1", "n2"):
        served = as_json(node(name, ready=True))
        served["status"]["allocatable"] = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        api.create(served)
    only_n1 = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only_n1]}}}
    for name, spec in (("first", {"affinity": affinity}), ("second", {}), ("third", {"affinity": affinity})):
        made = pod_json(name, gpus=0)
        made["spec"] |= spec
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
        api.create(made)
    async with KubeSchedulerStandIn(client, extender.url):
        await until(lambda: stored(api, "third")["status"].get("conditions"))
        assert [stored(api, name)["spec"].get("nodeName") for name in ("first", "second")] == ["n1", "n2"]
        [condition] = stored(api, "third")["status"]["conditions"]
        refused = "1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]"
        assert condition["message"] == f"0/2 nodes are available: {refused}."
        api.patch("pods", "first", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")
        await until(lambda: stored(api, "third")["spec"].get("nodeName") == "n1")


def asking(name: str, **amounts: int) -> dict[str, Any]:
    made = pod_json(name)
    made["spec"]["containers"][0]["resources"] = {"limits": {f"nvidia.com/{key}": n for key, n in amounts.items()}}
    return made


SHIPPED = shipped.scheduler_configuration(shipped.base())["extenders"][0]["managedResources"]


def test_the_stand_in_ignores_what_the_shipped_configuration_says() -> None:
    assert {one["name"] for one in SHIPPED if one["ignoredByScheduler"]} == MANAGED_RESOURCES


@pytest.mark.parametrize("missing", sorted(MANAGED_RESOURCES))
async def test_a_resource_that_the_shipped_configuration_lacked_would_keep_its_pods_waiting(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender, missing: str
) -> None:
    api.create(as_json(node("n1", ready=True)))
    made = asking("a", gpu=1)
    made["spec"]["containers"][0]["resources"]["limits"] |= dict.fromkeys(MANAGED_RESOURCES, 1)
    api.create(made)
    async with KubeSchedulerStandIn(client, extender.url, managed_resources=MANAGED_RESOURCES - {missing}):
        await until(lambda: stored(api, "a")["status"].get("conditions"))
    [condition] = stored(api, "a")["status"]["conditions"]
    assert condition["message"] == f"0/1 nodes are available: 1 Insufficient {missing}."
    assert extender.filtered == []


async def test_of_a_resource_that_it_is_not_to_ignore_it_hands_out_what_the_node_has(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender
) -> None:
    instance = "mig-1g.10gb"
    served = as_json(node("n1", ready=True))
    served["status"]["allocatable"] = {f"nvidia.com/{instance}": "2"}
    api.create(served)
    for name in ("a", "b", "c"):
        api.create(asking(name, **{instance: 1}))
    async with KubeSchedulerStandIn(client, extender.url):
        await until(lambda: stored(api, "c")["status"].get("conditions"))
        assert "nodeName" not in stored(api, "c")["spec"]
        await until(lambda: stored(api, "b")["spec"].get("nodeName"))
        api.delete("pods", "a", namespace="default")
        await until(lambda: stored(api, "c")["spec"].get("nodeName"))
    assert extender.filtered == []


async def test_it_goes_on_after_dropped_watches_and_an_absent_api_server(
    api: EmbeddedApiServer, client: ApiServer, extender: Extender
) -> None:
    api.create(as_json(node("n1", ready=True)))
    api.create(pod_json("a"))
    async with KubeSchedulerStandIn(client, extender.url):
        await until(lambda: stored(api, "a")["spec"].get("nodeName"))
        await until(lambda: api.open_watches == 3)
        assert api.drop_watches() == 3
        api.create(pod_json("b"))
        await until(lambda: stored(api, "b")["spec"].get("nodeName"))
        await api.go_offline()
        api.create(pod_json("c"))
        await api.go_online()
        await until(lambda: stored(api, "c")["spec"].get("nodeName"))
