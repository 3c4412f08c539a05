"""A tenant fills, takes over and locks what it finds of the host; the daemon has the rights of the DaemonSet."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from simulation.apiserver import EmbeddedApiServer
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.polling import until

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"),
]

CGROUPS = Path("/sys/fs/cgroup/memory")
SHIPPED = Path(__file__).parents[2] / "daemonset/components/hami-core/device-plugin.yaml"
TENANT = 1234
FILES = 25_000
ROOM_BYTES = 7 << 20
"""Beyond what the daemon uses already: less than the names of all files take."""
_FILL = """
import os, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
for number in range(int(sys.argv[2])):
    os.close(os.open(f"{number:07d}" + "x" * 248, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
"""


def rights(_: Path) -> Sequence[str]:
    """As the DaemonSet's container with HAMi-core."""
    documents = yaml.safe_load_all(SHIPPED.read_text())
    added = {
        right
        for document in documents
        for container in document["spec"]["template"]["spec"].get("containers", ())
        for right in container.get("securityContext", {}).get("capabilities", {}).get("add", ())
    }
    kept = ",".join(["-all", *(f"+{right.lower()}" for right in sorted(added))])
    return ("setpriv", f"--bounding-set={kept}", f"--inh-caps={kept}")


@asynccontextmanager
async def node() -> AsyncIterator[DaemonRig]:
    async with daemon(runtime_version="containerd://2.3.1", under=rights) as rig:
        yield rig


async def folders(rig: DaemonRig, name: str, gpu: int) -> tuple[str, list[Path]]:
    """A container that is held to a share: its pod's UID, and what it may write to on the host."""
    uid = rig.bind(name, gpu)
    await rig.runs(name)
    return uid, [Path(mount.host_path) for mount in rig.kubelet.created[uid][0].mounts if not mount.read_only]


async def test_what_one_container_does_to_its_folders_concerns_no_other_container() -> None:
    async with node() as rig:
        uid, tenants = await folders(rig, "tenant", 1)
        assert len(tenants) == 2
        for folder in tenants:
            (folder / "lock").touch()
            os.chown(folder, TENANT, TENANT)
            os.chmod(folder, 0)
        with (tenants[-1] / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            _, others = await folders(rig, "other", 2)
            assert set(others).isdisjoint(tenants)
            with (others[-1] / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its own container gets fresh folders, and what it left is removed.
        await rig.kubelet.restart_container(uid, "c0")
        assert {(folder.stat().st_uid, folder.stat().st_mode & 0o777) for folder in tenants} == {(0, 0o777)}
        await until(lambda: not list((rig.kubelet.root / "hook/vgpu").glob("*/.gone-*")))
        assert rig.problems() == []


def as_user_of_the_host(command: str) -> int:
    # Setpriv itself keeps its capabilities until it runs the shell.
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    return run(*user, "sh", "-c", command)


def run(*command: str) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


def left_open(_: EmbeddedApiServer, root: Path) -> None:
    """HAMi's plugin makes the folders so."""
    root.chmod(0o755)
    for name in ("containers", "locks"):
        (root / "hook/vgpu" / name).mkdir(mode=0o755, exist_ok=True)


async def test_users_of_the_host_reach_nothing_that_a_tenant_leaves_in_its_folders() -> None:
    async with daemon(runtime_version="containerd://2.3.1", under=rights, before=left_open) as rig:
        parents = [rig.kubelet.root / "hook/vgpu" / name for name in ("containers", "locks")]
        await until(lambda: all(parent.stat().st_mode & 0o7777 == 0o700 for parent in parents))
        _, tenants = await folders(rig, "tenant", 1)
        for folder in tenants:
            shutil.copy("/usr/bin/true", folder / "program")
            (folder / "program").chmod(0o4755)
            assert as_user_of_the_host(f"ls {folder.parents[1]}") == 0
            assert as_user_of_the_host(str(folder / "program")) == 126
            assert run(str(folder / "program")) == 0
        assert rig.problems() == []


@pytest.fixture
def cgroup() -> Iterator[Path]:
    if not os.access(CGROUPS / "memory.limit_in_bytes", os.W_OK):
        pytest.skip("needs version 1 of the memory cgroups")
    folder = CGROUPS / f"topogpu-test-{uuid4().hex[:8]}"
    folder.mkdir()
    yield folder
    for pid in (folder / "cgroup.procs").read_text().split():
        (CGROUPS / "cgroup.procs").write_text(pid)
    folder.rmdir()


async def test_a_folder_with_very_many_files_is_removed_in_little_memory(cgroup: Path) -> None:
    async with node() as rig:
        uid, (region, _) = await folders(rig, "tenant", 1)
        fill = await asyncio.create_subprocess_exec(sys.executable, "-c", _FILL, str(region), str(FILES))
        assert await fill.wait() == 0
        (cgroup / "cgroup.procs").write_text(str(rig.process.pid))
        resident = int(Path(f"/proc/{rig.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        (cgroup / "memory.limit_in_bytes").write_text(str(ROOM_BYTES))
        assert resident > ROOM_BYTES  # it is counted from now on alone
        await rig.kubelet.restart_container(uid, "c0")
        await until(lambda: not list((rig.kubelet.root / "hook/vgpu").glob("*/.gone-*")))
        await rig.runs("tenant")
        assert rig.process.returncode is None
        assert rig.problems() == []
