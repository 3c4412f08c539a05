"""The daemon within the memory that the DaemonSet allows it, on a node with pods of any size."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from proto.quantity import integer_quantity
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import NODE

pytestmark = pytest.mark.needs_compiler

SHIPPED = Path(__file__).parents[2] / "daemonset/base/device-plugin.yaml"
_LIMITS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
"""The file with a group's limit, by the folder of groups: version 1, version 2."""


def shipped_limit_bytes() -> int:
    [daemon_set] = (each for each in yaml.safe_load_all(SHIPPED.read_text()) if each["kind"] == "DaemonSet")
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    return integer_quantity(container["resources"]["limits"]["memory"])


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group with that limit."""
    for root, file in _LIMITS.items():
        folder = root / f"topogpu-test-{uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / file).write_text(str(shipped_limit_bytes()))
        except OSError:
            folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("needs to be root, and control groups for memory")


async def test_pods_with_very_long_arguments_do_not_end_the_daemon(limited: Path) -> None:
    """They ask for no GPU and have ended. All of them together are larger than the limit when they are listed."""
    inside = ("sh", "-c", f'echo $$ > {limited}/cgroup.procs; exec "$@"', "sh")
    container = {"name": "c", "image": "i", "args": ["x" * 1_300_000]}
    async with daemon("--allocation", "slots", under=lambda _: inside) as node:
        await node.kill()
        for number in range(70):
            metadata = {"name": f"t{number}", "namespace": "tenant"}
            spec = {"nodeName": NODE, "containers": [container]}
            node.server.create(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Failed"}}
            )
        await node.start()
        await node.ready()
        assert node.process.returncode is None
        uid = node.bind("p", 1)
        await node.runs("p")
        assert (node.visible(uid), node.problems()) == (node.uuid(1), [])
