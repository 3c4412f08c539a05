"""`/prioritize` over real HTTP."""

from scheduler_ext.policies import parse_node_policy
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import FilterReturns
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running


async def test_prioritize_scores_by_our_order_of_nodes() -> None:
    async with running(node_json("used"), node_json("empty"), filter_returns=FilterReturns.ALL) as rig:
        assert await rig.bind(rig.add_pod("first"), "used") == ""
        body = {"Pod": pod_json("p"), "Nodes": None, "NodeNames": ["empty", "used", "nowhere"]}
        assert await rig.post("/prioritize", body) == [
            {"Host": "empty", "Score": 1},
            {"Host": "used", "Score": 10},
            {"Host": "nowhere", "Score": 0},
        ]
        body["Pod"] = pod_json("cpu", gpus=0)
        assert {row["Score"] for row in await rig.post("/prioritize", body)} == {0}


async def test_pods_without_gpus_go_first_where_gpus_do_not_need_the_cpu() -> None:
    """With `fgd`, and as far as it is known which pods usually come."""
    nodes = [node_json("gpus"), node_json("spare"), node_json("first"), node_json("cpus", gpus=0)]
    for node, cpu in zip(nodes, ("8", "16", "16", "16"), strict=True):
        node["status"]["allocatable"] |= {"cpu": cpu, "memory": "64Gi"}
    asks = {"cpu": "8", "memory": "1Gi"}
    usual = pod_json("usual", memory_mib=0)
    usual["spec"]["containers"][0]["resources"]["requests"] = {**asks}
    cpu_pod = pod_json("cpu", gpus=0)
    cpu_pod["spec"]["containers"][0]["resources"] = {"requests": {**asks}}
    body = {"Pod": cpu_pod, "NodeNames": ["gpus", "spare", "cpus", "nowhere"]}
    for policy, scores in (("fgd", [0, 10, 10, 10]), ("binpack", [0, 0, 0, 0])):
        requests = RequestSettings(node_policy=parse_node_policy(policy))
        async with running(*nodes, requests=requests) as rig:
            assert await rig.bind(rig.server.create(usual), "first") == ""
            rig.server.patch(
                "pods", "usual", {"status": {"phase": "Running"}}, namespace="default", subresource="status"
            )

            async def scored(rig: Rig = rig, scores: list[int] = scores) -> bool:
                answer = await rig.post("/prioritize-without-gpus", body)
                return [row["Score"] for row in answer] == scores

            await until(scored)
            answer = await rig.post("/prioritize-without-gpus", {**body, "Pod": pod_json("p")})
            assert [row["Score"] for row in answer] == [0, 0, 0, 0]
