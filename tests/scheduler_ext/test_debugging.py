"""What the running extender tells people, and that its snapshot replays."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proto.annotations import keys
from scheduler_ext.cli import main
from scheduler_ext.http.messages import is_local
from scheduler_ext.settings import LeaseSettings
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import FAST, Rig, extender_for, running


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


async def explained(rig: Rig, pod: str) -> str:
    result = await asyncio.to_thread(ask, "explain", pod, "--url", rig.url)
    assert result.exit_code == 0, result.output
    return result.output


async def test_a_pod_that_waits_is_told_what_each_gpu_lacks() -> None:
    async with running(node_json("n", replicas=1)) as rig:
        assert await rig.bind(rig.add_pod("first"), "n") == ""
        await rig.filter(rig.add_pod("p"), "n")
        text = await explained(rig, "p")
        assert re.match(r"pod default/p waits: no replica left \(on n\)\ndecided \d+ s ago: no available", text)
        assert "GPU 0: all 1 replicas are taken" in text


async def test_a_bound_pod_is_told_where_it_is_and_what_was_said() -> None:
    async with running(node_json("n"), node_json("m")) as rig:
        pod = rig.add_pod("p")
        await rig.filter(pod, "n", "m")
        assert await rig.bind(pod, "m") == ""
        text = await explained(rig, "p")
        assert text.startswith("pod default/p is on node m with GPU 0 (A100-SXM4-40GB)\n")
        assert re.search(r"decided \d+ s ago: find fit node\(m\), 0 nodes not fit, 2 nodes fit\(", text)


async def test_a_bound_pod_is_told_its_gpus_by_name_once_its_node_is_cordoned() -> None:
    async with running(node_json("n")) as rig:
        assert await rig.bind(rig.add_pod("p"), "n") == ""
        rig.server.patch("nodes", "n", {"spec": {"unschedulable": True}})

        async def is_cordoned() -> bool:
            return "the node is cordoned" in (await rig.status("/debug/explain?pod=p"))[1]

        await until(is_cordoned)
        assert (await explained(rig, "p")).startswith("pod default/p is on node n with GPU 0 (A100-SXM4-40GB)\n")


async def test_a_bound_pod_is_told_which_of_its_gpus_fell_ill() -> None:
    async with running(node_json("n", gpus=2)) as rig:
        assert await rig.bind(rig.add_pod("p"), "n") == ""
        had = (await explained(rig, "p")).partition(" with GPU ")[2].partition(" ")[0]
        ill = json.loads(node_json("n", gpus=2)["metadata"]["annotations"][keys.NODE_REGISTER])
        for gpu in ill:
            gpu["health"] = gpu["id"] != f"GPU-n-{had}"
        rig.server.patch("nodes", "n", {"metadata": {"annotations": {keys.NODE_REGISTER: json.dumps(ill)}}})
        wanted = f"; unhealthy: GPU {had}, and events of the node have the reason\n"

        async def told() -> bool:
            return wanted in await explained(rig, "p")

        await until(told)


async def test_a_pod_that_could_go_or_asks_for_nothing_or_cannot_be_read_is_told_so() -> None:
    async with running(node_json("n")) as rig:
        rig.add_pod("p")
        assert "waits for scheduler topogpu-scheduler, which has not tried it" in await explained(rig, "p")
        others = pod_json("others")
        others["spec"]["schedulerName"] = "default-scheduler"
        rig.server.create(others)
        assert "scheduler default-scheduler, which has not tried it" in await explained(rig, "others")
        rig.add_pod("cpu", gpus=0)
        assert await explained(rig, "cpu") == ("pod default/cpu asks for no GPU: kube-scheduler places it alone\n")
        broken = pod_json("broken")
        broken["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "8Gi"
        rig.server.create(broken)
        assert "container main: nvidia.com/gpumem: " in await explained(rig, "broken")


async def test_a_pod_that_has_ended_holds_nothing_any_more() -> None:
    async with running(node_json("n")) as rig:
        assert await rig.bind(rig.add_pod("p"), "n") == ""
        rig.server.patch("pods", "p", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")
        text = await explained(rig, "p")
        assert text.startswith("pod default/p has ended (Succeeded): it holds no GPUs any more\n")
        refused = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "Resources cannot be aligned"}
        rig.server.patch("pods", "p", {"status": refused}, namespace="default", subresource="status")
        assert "ended (Failed: TopologyAffinityError: Resources cannot be aligned)" in await explained(rig, "p")


async def test_who_cannot_decide_says_why_pods_wait_and_still_where_pods_are() -> None:
    lease = LeaseSettings(elects=True, name="scheduler", namespace="kube-system", identity="us")
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        bound = pod_json("bound")
        bound["spec"]["nodeName"] = "n"
        bound["metadata"]["annotations"] = {keys.DEVICES_ALLOCATED: "GPU-n-0,NVIDIA,1000,0:;"}
        for pod in (bound, pod_json("p"), pod_json("cpu", gpus=0)):
            server.create(pod)
        async with extender_for(server, FAST, synced=True, lease=lease) as rig:
            assert (await explained(rig, "p")).startswith(
                "pod default/p waits: this replica does not lead: lease kube-system/scheduler has no holder\n"
            )
            assert (await explained(rig, "bound")).startswith(
                "pod default/bound is on node n with GPU 0 (A100-SXM4-40GB)\n"
            )
            assert "asks for no GPU" in await explained(rig, "cpu")
        server.inject(Fault(resources=frozenset({"nodes"}), latency_seconds=60))
        async with extender_for(server, FAST, synced=False) as rig:
            assert re.match(
                r"pod default/p waits: not ready: the API server has not listed nodes", await explained(rig, "p")
            )


async def test_trouble_in_asking_is_one_sentence() -> None:
    async with running() as rig:
        result = await asyncio.to_thread(ask, "explain", "nobody", "-n", "ml", "--url", rig.url)
        assert (result.exit_code, result.output) == (1, "Error: there is no pod ml/nobody\n")
    result = await asyncio.to_thread(ask, "explain", "p", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output.startswith("Error: the extender at http://127.0.0.1:1 cannot be reached: ")


async def test_the_snapshot_replays_the_decision(tmp_path: Path) -> None:
    async with running(node_json("a", gpus=2), node_json("b"), {"kind": "Node", "metadata": {"name": "cpu"}}) as rig:
        assert await rig.bind(rig.add_pod("first"), "b") == ""
        decided = await rig.filter(rig.add_pod("p"), "a", "b")
        status, snapshot = await rig.status("/debug/snapshot?excluding=" + rig.pod("p")["metadata"]["uid"])
        assert status == 200
    (tmp_path / "snapshot.json").write_text(snapshot)
    (tmp_path / "pod.json").write_text(json.dumps(pod_json("p")))
    files = ("--snapshot", str(tmp_path / "snapshot.json"), "-f", str(tmp_path / "pod.json"))
    result = ask("decide", *files, "--output", "json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.output)
    assert [answer["node"]] == decided["NodeNames"]
    assert answer["failed"] == {"cpu": "node unregistered"}


@pytest.mark.parametrize(
    ("remote", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("::ffff:10.0.0.7", False),
        ("fe80::1%eth0", False),
        (None, False),
    ],
)
def test_only_callers_on_the_same_host_are_told(remote: str | None, local: bool) -> None:
    assert is_local(remote) == local


def test_a_file_that_is_no_snapshot_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(pod_json("p")))
    for text, problem in (("{}", "holds no snapshot"), ('{"nodes": {"a": 7}}', "Expected `object`, got `int`")):
        (tmp_path / "s.json").write_text(text)
        result = ask("decide", "--snapshot", str(tmp_path / "s.json"), "-f", str(tmp_path / "pod.json"))
        assert result.exit_code == 2
        assert problem in result.output
