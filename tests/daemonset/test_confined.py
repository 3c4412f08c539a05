"""Both programs work with what their security contexts leave them: no capabilities, a read-only root."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from simulation.apiserver import EmbeddedApiServer
from simulation.processes import ChildProcess
from tests.deviceplugin.daemon_rig import daemon
from tests.polling import until

CONFINE = """
mount --bind "$0" "$0" && mount -o remount,bind,ro / &&
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


NOBODY = ("--reuid=65532", "--regid=65532", "--clear-groups")


def confined(writable: Path) -> Sequence[str]:
    """As a container runtime starts it: one mount is writable, the root is not, and no capability is left."""
    # What measures coverage would write where nothing may be written.
    return ("env", "--unset=COVERAGE_PROCESS_CONFIG", "unshare", "--mount", "sh", "-c", CONFINE, str(writable))


@pytest.fixture(autouse=True, scope="module")
def _may_confine(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root may take rights away so: run as root, with util-linux")
    tried = subprocess.run(
        [*confined(tmp_path_factory.mktemp("w")), "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"this machine allows no mount: {tried.stderr.strip()}")


@pytest.mark.needs_compiler
async def test_a_pod_gets_its_gpus_from_a_daemon_without_capabilities_on_a_read_only_root() -> None:
    async with daemon("--limits", "driver,hami-core,unenforced", under=confined) as rig:
        status = Path(f"/proc/{rig.process.pid}/status").read_text()
        assert re.findall(r"^(Cap(?:Prm|Eff|Bnd)|NoNewPrivs):\s+(\S+)$", status, re.MULTILINE) == [
            ("CapPrm", "0000000000000000"),
            ("CapEff", "0000000000000000"),
            ("CapBnd", "0000000000000000"),
            ("NoNewPrivs", "1"),
        ]
        uid = rig.bind("train", 1, 2)
        await rig.runs("train")
        assert set(rig.visible(uid).split(",")) == {rig.uuid(1), rig.uuid(2)}
        assert (await rig.get("/readyz"))[0] == 200
        assert [line for line in rig.problems() if "Read-only" in line or "Permission" in line] == []


def test_hami_core_is_installed_without_capabilities_on_a_read_only_root(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    shutil.copy(shared_object(), tmp_path / "from" / "libvgpu.so")
    words = ["install-hami-core", f"--from={tmp_path}/from", f"--hook-path={tmp_path}"]
    command = [*confined(tmp_path), sys.executable, "-m", "deviceplugin", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "vgpu" / "libvgpu.so").is_symlink()


def shared_object() -> Path:
    """Any one built for this machine."""
    import _ctypes

    return Path(_ctypes.__file__)


@pytest.fixture
def readable() -> Iterator[Path]:
    """Unlike pytest's own, which lie in folders of their owner's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


async def test_the_extender_is_ready_as_nobody_on_a_read_only_root(readable: Path) -> None:
    start = [*confined(readable), *NOBODY, sys.executable]
    if not runs([*start, "-c", "import scheduler_ext"]):
        pytest.skip("this virtual environment lies where only its owner may read it")
    async with EmbeddedApiServer() as server:
        kubeconfig = readable / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        flags = ["--kubeconfig", str(kubeconfig), "--http_bind=127.0.0.1:0", "--metrics-bind-address="]
        command = [*start, "-m", "scheduler_ext", "serve", *flags]
        process = await ChildProcess.start("extender", command, dict(os.environ), readable / "extender.log")
        try:
            url = (await process.wait_for_line(r"listening on (http://\S+)", 60))[1]
            async with aiohttp.ClientSession() as http:
                await until(lambda: ready(http, url))
        finally:
            await process.stop()


def runs(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


async def ready(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(f"{url}/readyz") as answer:
        return answer.status == 200
