"""Other GPU memory for running pods, from `kubectl topogpu resize` to the driver: the daemon as a process over the fake
driver, the extender over HTTP, the real kubectl.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from proto.annotations import keys
from proto.annotations.memory_resize import answer_in
from simulation.nvml.machine_file import CallFails, Process
from tests.deviceplugin.daemon_rig import DaemonRig
from tests.deviceplugin.limits.limiting import group, held, limiting, part
from tests.polling import until
from tests.scheduler_ext.rig import FAST, extender_for

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not in PATH"),
]


@dataclass
class Site:
    node: DaemonRig
    kubeconfig: Path

    async def resize(self, *arguments: str) -> tuple[int, str]:
        """Status of the plugin, and what it wrote."""
        command = (sys.executable, "-m", "kubectl_topogpu", "resize", *arguments)
        process = await asyncio.create_subprocess_exec(
            *(*command, "--kubeconfig", str(self.kubeconfig), "-n", "default"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    def annotations(self, name: str) -> dict[str, str]:
        found = self.node.server.store.get("pods", "default", name)
        assert found is not None
        annotations: dict[str, str] = found["metadata"]["annotations"]
        return annotations

    def wish(self, name: str, text: str | None) -> None:
        body = {"metadata": {"annotations": {keys.MEMORY_WISH: text}}}
        self.node.server.patch("pods", name, body, namespace="default")

    def state(self, name: str) -> str:
        answer = answer_in(self.annotations(name))
        return "" if answer is None else answer.state.value

    def holds(self, name: str) -> list[int]:
        """MiB of each share, by the annotation that everybody counts."""
        shares = self.annotations(name)[keys.DEVICES_ALLOCATED].replace(";", "").split(":")
        return [int(share.split(",")[2]) for share in shares if share]

    def uses(self, uid: str, mib: int, *faults: CallFails, gpu: int = 0) -> None:
        """The container's process uses so much of its GPU."""
        Path(group(self.node, uid), "cgroup.procs").write_text("4711\n")
        self.node.machine(*faults, usage=[Process(gpu=gpu, pid=4711, used_mib=mib)])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """One node with the driver's limits and HAMi-core, and the extender."""
    kubeconfig = tmp_path_factory.mktemp("resize") / "kubeconfig"
    async with limiting(hami_core=True) as node, extender_for(node.server, FAST, synced=True):
        kubeconfig.write_text(node.server.kubeconfig())
        yield Site(node, kubeconfig)
    assert node.problems() == []


async def test_a_running_pod_grows_and_shrinks_without_a_restart(site: Site) -> None:
    node = site.node
    uid = node.bind("p", lent=((part(node, 0, 3000),),))
    await node.runs("p")
    before = group(node, uid)
    status, out = await site.resize("p", "--memory", "8Gi")
    assert (status, out.splitlines()[-1]) == (0, "GPU memory changed as wished (8192)")
    assert (site.holds("p"), held(node, uid)) == ([8192], {node.uuid(0): 8192})
    status, out = await site.resize("p", "--memory", "1000", "--container", "c0")
    assert (status, out.splitlines()[-1]) == (0, "GPU memory changed as wished (c0=1000)")
    assert (site.holds("p"), held(node, uid), group(node, uid)) == ([1000], {node.uuid(0): 1000}, before)
    await until(lambda: len(node.events("GPUMemoryResized")) == 2)
    again = await node.kubelet.restart_container(uid, "c0")
    assert again.container_id not in before
    assert held(node, uid) == {node.uuid(0): 1000}
    node.server.delete("pods", "p", namespace="default")


async def test_a_pod_that_uses_more_gives_it_back_before_others_get_it(site: Site) -> None:
    node = site.node
    uid = node.bind("busy", lent=((part(node, 0, 3000),),))
    await node.runs("busy")
    site.uses(uid, 2500)
    status, out = await site.resize("busy", "--memory", "2000", "--timeout", "3")
    assert status == 1
    assert "container c0 uses 2500 MiB of" in out
    assert "Error: not done in time: GPU memory becomes smaller (2000)" in out
    assert (site.state("busy"), site.holds("busy")) == ("shrinking", [3000])
    assert held(node, uid) == {node.uuid(0): 2000}
    site.uses(uid, 1999)
    await until(lambda: site.state("busy") == "done")
    assert site.holds("busy") == [2000]
    node.machine()
    node.server.delete("pods", "busy", namespace="default")


async def test_a_container_with_all_of_a_gpu_that_starts_again_while_it_shrinks_gets_no_more_than_was_promised(
    site: Site,
) -> None:
    node = site.node
    uid = node.bind("large", lent=((part(node, 3, node.gpus()[3].memory_mib - 1),),))
    await node.runs("large")
    site.wish("large", str(node.gpus()[3].memory_mib))
    await until(lambda: site.state("large") == "done")
    site.uses(uid, 2500, gpu=3)
    site.wish("large", "2000")
    await until(lambda: "uses 2500 MiB" in site.annotations("large")[keys.MEMORY_RESIZE])
    node.machine()
    await node.kubelet.restart_container(uid, "c0")
    assert held(node, uid) == {node.uuid(3): 2000}
    await until(lambda: site.state("large") == "done")
    assert (site.holds("large"), held(node, uid)) == ([2000], {node.uuid(3): 2000})
    node.server.delete("pods", "large", namespace="default")


async def test_a_driver_that_takes_no_limit_below_what_is_used_is_asked_again(site: Site) -> None:
    node = site.node
    uid = node.bind("stubborn", lent=((part(node, 0, 3000),),))
    await node.runs("stubborn")
    fails = CallFails(gpu=0, call="nvmlDeviceSetMemoryLimits_v1", error="INVALID_ARGUMENT")
    site.uses(uid, 2500, fails)
    site.wish("stubborn", "2000")
    await until(lambda: "uses 2500 MiB" in site.annotations("stubborn").get(keys.MEMORY_RESIZE, ""))
    assert (site.state("stubborn"), site.holds("stubborn")) == ("shrinking", [3000])
    assert held(node, uid) == {node.uuid(0): 3000}
    site.uses(uid, 100)
    await until(lambda: site.state("stubborn") == "done")
    assert (site.holds("stubborn"), held(node, uid)) == ([2000], {node.uuid(0): 2000})
    node.machine()
    node.server.delete("pods", "stubborn", namespace="default")


async def test_what_nothing_can_change_is_refused_with_a_sentence(site: Site) -> None:
    node = site.node
    node.bind("whole", lent=((part(node, 1, node.gpus()[1].memory_mib, 100),),))
    node.bind("cores", lent=((part(node, 2, 3000, 30),),))
    await node.runs("whole", "cores")
    status, out = await site.resize("whole", "--memory", "1000")
    assert status == 1
    assert "the driver does not limit the GPU memory of container c0, which has whole GPUs or MIG instances" in out
    most = node.gpus()[2].memory_mib
    status, out = await site.resize("cores", "--memory", str(most + 1))
    assert f"has {most} MiB, of which 0 MiB are taken beside this pod: it cannot have {most + 1} MiB" in out
    assert (await site.resize("cores", "--memory", "5%"))[0] == 2
    assert "c1 is not a container of this pod" in (await site.resize("cores", "--memory", "5", "--container", "c1"))[1]
    assert 'pods "nowhere" not found' in (await site.resize("nowhere", "--memory", "5"))[1]
    await until(lambda: len(node.events("GPUMemoryNotResized")) == 2)
    assert (await site.resize("cores", "--memory", "4000"))[0] == 0
    for name in ("whole", "cores"):
        node.server.delete("pods", name, namespace="default")


async def test_a_wish_that_is_taken_back_leaves_the_pod_what_it_holds(site: Site) -> None:
    node = site.node
    uid = node.bind("back", lent=((part(node, 0, 3000),),))
    await node.runs("back")
    site.uses(uid, 2500)
    site.wish("back", "1000")
    await until(lambda: site.state("back") == "shrinking")
    site.wish("back", None)
    await until(lambda: site.state("back") == "")
    await until(lambda: held(node, uid) == {node.uuid(0): 3000})
    assert site.holds("back") == [3000]
    node.machine()
    node.server.delete("pods", "back", namespace="default")


async def test_a_daemon_that_starts_again_goes_on(site: Site) -> None:
    node = site.node
    uid = node.bind_shares("pair", ((part(node, 0, 3000), part(node, 1, 3000)), (part(node, 0, 1000),)))
    await node.runs("pair")
    await node.kill()
    site.wish("pair", "c0=2000,c1=5000")
    await node.start()
    await until(lambda: site.state("pair") == "done")
    assert site.holds("pair") == [2000, 2000, 5000]
    assert held(node, uid) == {node.uuid(0): 2000, node.uuid(1): 2000}
    assert held(node, uid, "c1") == {node.uuid(0): 5000}
    node.server.delete("pods", "pair", namespace="default")
