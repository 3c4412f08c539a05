import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simulation.apiserver import EmbeddedApiServer
from tests.builders import as_json, node, pod_json
from tests.cluster.binaries import Binaries
from tests.polling import LONGEST_SECONDS

pytestmark = pytest.mark.cluster


class Kubectl:
    """The one that was built with the real control plane; it must find its way about the embedded API server."""

    def __init__(self, program: str, server: EmbeddedApiServer, home: Path) -> None:
        self.server = server
        self._program = program
        config = home / "config"
        config.write_text(server.kubeconfig())
        self.environment = {"HOME": str(home), "KUBECONFIG": str(config), "PATH": os.environ["PATH"]}

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            self._program, *arguments, env=self.environment, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )

    async def __call__(self, *arguments: str, text: str = "") -> str:
        process = await self.start(*arguments)
        output, _ = await asyncio.wait_for(process.communicate(text.encode()), LONGEST_SECONDS)
        assert process.returncode == 0, output.decode()
        return output.decode()


@pytest.fixture
async def kubectl(kubernetes: Binaries, tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with EmbeddedApiServer(longest_grace_seconds=1) as server:
        yield Kubectl(kubernetes.path("kubectl"), server, tmp_path)


async def test_it_lists_and_prints_objects(kubectl: Kubectl) -> None:
    kubectl.server.create(as_json(node("n1", ready=True)))
    kubectl.server.create(pod_json("a", node_name="n1"))
    assert [line.split()[:2] for line in (await kubectl("get", "nodes")).splitlines()[1:]] == [["n1", "Ready"]]
    assert json.loads(await kubectl("get", "pods", "-A", "-o", "json"))["items"][0]["metadata"]["name"] == "a"
    assert "nodeName: n1" in await kubectl("get", "po", "a", "-o", "yaml")


async def test_it_describes_pods_with_events_and_nodes_with_pods(kubectl: Kubectl) -> None:
    kubectl.server.create(as_json(node("n1", ready=True)))
    made = kubectl.server.create(pod_json("a", node_name="n1"))
    kubectl.server.create(
        {
            "kind": "Event",
            "metadata": {"name": "a.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default", "uid": made["metadata"]["uid"]},
            "reason": "FailedScheduling",
            "message": "no node fits",
            "type": "Warning",
        }
    )
    assert "no node fits" in await kubectl("describe", "pod", "a")
    described = await kubectl("describe", "node", "n1")
    assert "(1 in total)" in described


async def test_it_applies_twice_and_deletes(kubectl: Kubectl) -> None:
    manifest = pod_json("a", labels={"app": "x"})
    del manifest["metadata"]["uid"]
    assert "created" in await kubectl("apply", "-f", "-", text=json.dumps(manifest))
    manifest["metadata"]["labels"] = {"app": "y"}
    assert "configured" in await kubectl("apply", "-f", "-", text=json.dumps(manifest))
    stored = kubectl.server.store.get("pods", "default", "a")
    assert stored is not None
    assert stored["metadata"]["labels"] == {"app": "y"}
    kubectl.server.create(as_json(node("n1", ready=True)))
    assert "deleted" in await kubectl("delete", "pod/a")
    assert "deleted" in await kubectl("delete", "node", "n1")
    assert kubectl.server.store.objects("pods") == []


async def test_it_taints_and_untaints_nodes(kubectl: Kubectl) -> None:
    kubectl.server.create(as_json(node("n1", ready=True)))
    await kubectl("taint", "node", "n1", "a=b:NoSchedule")
    await kubectl("taint", "node", "n1", "a-")
    stored = kubectl.server.store.get("nodes", "", "n1")
    assert stored is not None
    assert not stored["spec"].get("taints")


async def test_it_watches(kubectl: Kubectl) -> None:
    kubectl.server.create(pod_json("first"))
    process = await kubectl.start("get", "pods", "-w", "--no-headers")
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), LONGEST_SECONDS)).startswith(b"first ")
    kubectl.server.create(pod_json("second"))
    assert (await asyncio.wait_for(process.stdout.readline(), LONGEST_SECONDS)).startswith(b"second ")
    process.terminate()
    await process.communicate()
