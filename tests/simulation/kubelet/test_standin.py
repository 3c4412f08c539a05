"""The kubelet stand-in against the embedded API server and a small real plugin."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proto.kubernetes.client import ApiServer
from simulation.apiserver import EmbeddedApiServer
from simulation.kubelet.container import CreatedDeviceNode
from simulation.kubelet.device_manager import PreStartRefused
from simulation.kubelet.lives import Ending, Life
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from tests.polling import until
from tests.simulation.kubelet.plugin import IDS, RESOURCE, SmallPlugin

NODE = "n1"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Cluster:
    server: EmbeddedApiServer
    api: ApiServer
    root: Path
    kubelet: KubeletStandIn
    stack: AsyncExitStack

    async def plugin(self, *, pre_start: bool = False) -> SmallPlugin:
        """Registered, and its capacity on the Node."""
        plugin = SmallPlugin(self.root / "device-plugins", pre_start=pre_start)
        self.stack.push_async_callback(plugin.stop)
        await plugin.start()
        await until(lambda: self.allocatable() == str(len(IDS)))
        return plugin

    def allocatable(self) -> str | None:
        node: Any = self.server.store.get("nodes", "", NODE)
        value: str | None = node["status"]["allocatable"].get(RESOURCE)
        return value

    def bind(self, name: str, count: int) -> str:
        """Creates a pod of one container on the node; its UID."""
        limits = {RESOURCE: str(count)}
        spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}
        made = self.server.create({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec})
        return str(made["metadata"]["uid"])

    def status(self, name: str) -> Any:
        return (self.server.store.get("pods", "default", name) or {}).get("status", {})

    def waiting_reason(self, name: str) -> str:
        statuses = self.status(name).get("containerStatuses") or [{}]
        return str(statuses[0].get("state", {}).get("waiting", {}).get("reason", ""))

    def events(self) -> list[tuple[str, str]]:
        page = self.server.store.objects_at("events", self.server.store.version)
        return [(event["reason"], event["message"]) for event in page]

    async def running(self, name: str) -> None:
        await self.in_phase(name, "Running")

    async def in_phase(self, name: str, phase: str) -> None:
        await until(lambda: self.status(name).get("phase") == phase)

    async def holds_nothing(self, uid: str) -> None:
        await until(lambda: self.held(uid) == ())

    def held(self, uid: str) -> tuple[str, ...]:
        return tuple(name for held in self.kubelet.devices.held(uid) for name in held.ids)


def new_kubelet(server: EmbeddedApiServer, api: ApiServer, root: Path) -> KubeletStandIn:
    settings = StandInSettings(api_url=server.url, cdi_directories=[root / "cdi"])
    return KubeletStandIn(NODE, root, api, settings, now=lambda: NOW)


@pytest.fixture
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def cluster(root: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedApiServer(longest_grace_seconds=30))
        config = root / "kubeconfig"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config))
        stack.push_async_callback(api.close)
        cluster = Cluster(server, api, root, new_kubelet(server, api, root), stack)
        await cluster.kubelet.start()
        yield cluster
        await cluster.kubelet.stop()


async def test_an_admitted_pod_runs_with_what_the_plugin_answered(cluster: Cluster) -> None:
    await cluster.plugin()
    uid = cluster.bind("p", 2)
    await cluster.running("p")
    status = cluster.status("p")["containerStatuses"][0]
    assert (status["name"], status["ready"], "running" in status["state"]) == ("c", True, True)
    (created,) = cluster.kubelet.created[uid]
    assert (created.device_ids, created.env["VISIBLE"]) == (("a-0", "a-1"), "a-0,a-1")


async def test_a_deleted_pod_goes_and_frees_its_ids(cluster: Cluster) -> None:
    await cluster.plugin()
    first = cluster.bind("first", 4)
    await cluster.running("first")
    cluster.server.delete("pods", "first", namespace="default")
    await until(lambda: not cluster.held(first))
    second = cluster.bind("second", 4)
    await cluster.running("second")
    assert len(cluster.held(second)) == 4


async def test_a_pod_that_is_deleted_with_a_grace_period_has_ended_before_it_goes(cluster: Cluster) -> None:
    await cluster.plugin()
    cluster.bind("p", 1)
    await cluster.running("p")
    before = cluster.server.store.version
    async with aiohttp.ClientSession() as http, http.delete(f"{cluster.server.url}/api/v1/namespaces/default/pods/p"):
        await until(lambda: cluster.server.store.get("pods", "default", "p") is None)
    seen = [change.last["status"]["phase"] for change in cluster.server.store.changes_after("pods", before)]
    assert (seen[0], seen[-1]) == ("Running", "Succeeded")


async def test_a_pod_that_ends_by_itself_is_over_stays_listed_and_frees_its_ids(cluster: Cluster) -> None:
    await cluster.plugin()
    lives = {"done": Life({"c": Ending(0.0, 0)}, "Never"), "wrong": Life({"c": Ending(0.0, 3)}, "Never")}
    cluster.kubelet.life = lambda pod: lives[pod.metadata.name]
    uids = {name: cluster.bind(name, 1) for name in lives}
    for name, phase, code in (("done", "Succeeded", 0), ("wrong", "Failed", 3)):
        await cluster.in_phase(name, phase)
        [container] = cluster.status(name)["containerStatuses"]
        assert (container["ready"], container["state"]["terminated"]["exitCode"]) == (False, code)
        await cluster.holds_nothing(uids[name])


async def test_a_container_that_fails_is_started_again_where_its_pod_asks_for_that(cluster: Cluster) -> None:
    await cluster.plugin()
    cluster.kubelet.life = lambda _: Life({"c": Ending(0.0, 1)}, "OnFailure")
    uid = cluster.bind("crashing", 1)
    await until(lambda: cluster.waiting_reason("crashing") == "CrashLoopBackOff")
    await until(lambda: len(cluster.kubelet.created.get(uid, ())) > 1)
    assert len(cluster.held(uid)) == 1


async def test_a_failing_pre_start_waits_tells_and_is_retried_until_it_succeeds(cluster: Cluster) -> None:
    plugin = await cluster.plugin(pre_start=True)
    plugin.pre_start_failures = 2
    cluster.bind("p", 1)
    await until(lambda: cluster.waiting_reason("p") == "CreateContainerConfigError")
    assert cluster.status("p")["phase"] == "Pending"
    await cluster.running("p")
    assert [call for call, _ in plugin.calls] == ["Allocate"] + ["PreStartContainer"] * 3
    (reason, message), *_ = cluster.events()
    assert reason == "Failed"
    assert "PreStartContainer rpc failed with err: rpc error: code = Unavailable desc = whose ids" in message


async def test_a_failing_allocate_is_final_with_the_plugins_words(cluster: Cluster) -> None:
    plugin = await cluster.plugin()
    plugin.refuse_with = "two pods match"
    uid = cluster.bind("p", 1)
    await until(lambda: cluster.status("p").get("phase") == "Failed")
    status = cluster.status("p")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "desc = two pods match" in status["message"]
    assert [reason for reason, _ in cluster.events()] == ["UnexpectedAdmissionError"]
    assert cluster.held(uid) == ()


async def test_a_pod_deleted_while_it_waits_for_admission_holds_nothing(cluster: Cluster) -> None:
    plugin = await cluster.plugin()
    plugin.answers.clear()
    first, second = cluster.bind("first", 1), cluster.bind("second", 1)
    await until(lambda: bool(plugin.calls))
    cluster.server.delete("pods", "first", namespace="default")
    cluster.server.delete("pods", "second", namespace="default")
    await until(lambda: not {first, second} & cluster.kubelet._seen)
    plugin.answers.set()
    third = cluster.bind("third", 4)
    await cluster.running("third")
    assert (cluster.held(first), cluster.held(second), len(cluster.held(third))) == ((), (), 4)
    assert len(plugin.calls) == 2


async def test_a_kubelet_that_was_down_starts_the_containers_that_it_had_not(cluster: Cluster) -> None:
    plugin = await cluster.plugin(pre_start=True)
    running = cluster.bind("running", 1)
    await cluster.running("running")
    plugin.pre_start_failures = 1_000
    waiting = cluster.bind("waiting", 2)
    await until(lambda: cluster.waiting_reason("waiting") != "")
    held = cluster.held(waiting)
    await cluster.kubelet.go_down()
    cluster.bind("late", 1)
    plugin.pre_start_failures = 0
    await plugin.stop()
    coming = asyncio.create_task(cluster.kubelet.come_back(pods_after_seconds=0.3))
    await until((cluster.root / "device-plugins/kubelet.sock").exists)
    await plugin.start()
    await coming
    await cluster.running("waiting")
    await cluster.running("late")
    assert (cluster.held(waiting), len(cluster.kubelet.created[running])) == (held, 1)


async def test_a_restart_keeps_pods_and_allocations_and_refuses_until_the_plugin_is_back(cluster: Cluster) -> None:
    plugin = await cluster.plugin()
    running = cluster.bind("running", 2)
    await cluster.running("running")
    await cluster.kubelet.restart()
    await plugin.stop()
    await until(lambda: cluster.allocatable() == "0")
    cluster.bind("early", 1)
    await until(lambda: cluster.status("early").get("phase") == "Failed")
    assert "no healthy devices present" in cluster.status("early")["message"]
    assert (cluster.status("running")["phase"], cluster.held(running)) == ("Running", ("a-0", "a-1"))
    again = await cluster.plugin()
    late = cluster.bind("late", 2)
    await cluster.running("late")
    assert cluster.held(late) == ("b-0", "b-1")
    assert len(again.calls) == 1


async def test_a_new_process_reads_the_checkpoint_and_frees_what_left_meanwhile(cluster: Cluster) -> None:
    plugin = await cluster.plugin()
    stays, leaves = cluster.bind("stays", 1), cluster.bind("leaves", 1)
    await cluster.running("stays")
    await cluster.running("leaves")
    await cluster.kubelet.stop()
    await plugin.stop()
    cluster.server.delete("pods", "leaves", namespace="default")
    cluster.kubelet = new_kubelet(cluster.server, cluster.api, cluster.root)
    await cluster.kubelet.start()
    await until(lambda: not cluster.held(leaves))
    assert len(cluster.held(stays)) == 1
    again = await cluster.plugin()
    other = cluster.bind("other", 3)
    await cluster.running("other")
    assert not set(cluster.held(other)) & set(cluster.held(stays))
    assert len(again.calls) == 1


async def test_cdi_devices_come_from_the_spec_directory_as_soon_as_it_holds_them(cluster: Cluster) -> None:
    plugin = await cluster.plugin()
    plugin.cdi_devices = ("example.com/slot=s1",)
    uid = cluster.bind("p", 1)
    await until(lambda: cluster.waiting_reason("p") == "CreateContainerError")
    (cluster.root / "cdi").mkdir()
    edits = {"env": ["SLOT=1"], "deviceNodes": [{"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3}]}
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/slot", "devices": [{"name": "s1", "containerEdits": edits}]}
    (cluster.root / "cdi" / "slots.json").write_text(json.dumps(spec))
    await cluster.running("p")
    (created,) = cluster.kubelet.created[uid]
    assert created.env["SLOT"] == "1"
    assert CreatedDeviceNode("/dev/nvidia3", "/dev/nvidia3", "rwm") in created.devices


async def test_a_restarted_container_is_told_to_the_plugin_and_created_anew(cluster: Cluster) -> None:
    plugin = await cluster.plugin(pre_start=True)
    uid = cluster.bind("p", 1)
    await cluster.running("p")
    plugin.pre_start_failures = 1
    with pytest.raises(PreStartRefused):
        await cluster.kubelet.restart_container(uid, "c")
    again = await cluster.kubelet.restart_container(uid, "c")
    assert cluster.kubelet.created[uid] == [again, again]
    assert [call for call, _ in plugin.calls].count("PreStartContainer") == 3
