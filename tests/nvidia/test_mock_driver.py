"""The daemon on NVIDIA's own mock of NVML, which knows nothing of ours.

$NVML_MOCK is the folder pkg/gpu/mocknvml of a checkout of NVIDIA/k8s-test-infra, with the library that
`make NO_PADDING=1` builds there.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from proto.devices import DeviceShare
from tests.deviceplugin.daemon_rig import daemon
from tests.polling import until

pytestmark = pytest.mark.nvidia

VARIABLE = "NVML_MOCK"
PROFILES = ("a100", "h100", "b200", "gb200", "gb300", "l40s", "t4")
OPTIONS = ("--read-seconds", "1", "--remediation-seconds", "10")
MIB = 1 << 20


@pytest.fixture(scope="module")
def mock() -> Path:
    folder = Path(os.environ.get(VARIABLE, ""))
    if not os.environ.get(VARIABLE) or not (folder / "libnvidia-ml.so.1").exists():
        pytest.skip(f"{VARIABLE}={os.environ.get(VARIABLE, '')} is no folder with NVIDIA's mock of NVML")
    return folder.absolute()


@pytest.fixture
def profile(mock: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the mock is configured to be."""
    path = mock / "configs" / f"mock-nvml-config-{request.param}.yaml"
    monkeypatch.setenv("MOCK_NVML_CONFIG", str(path))
    monkeypatch.setenv("MOCK_NVML_OVERRIDES", str(tmp_path / "overrides.yaml"))
    monkeypatch.setenv("MOCK_NVML_OVERRIDES_TTL", "200ms")
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("profile", PROFILES, indirect=True)
async def test_the_daemon_registers_the_gpus_of_nvidias_mock_and_serves_a_pod(
    mock: Path, profile: Any, tmp_path: Path
) -> None:
    described = profile["device_defaults"]
    memory = described["memory"]["total_bytes"] // MIB
    expected = [(each["uuid"], each["index"], memory, described["name"]) for each in profile["devices"]]
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    async with daemon("--host-root", str(tmp_path), *OPTIONS, library=mock / "libnvidia-ml.so.1") as node:
        found = [(gpu.uuid, gpu.index, gpu.memory_mib, gpu.type) for gpu in node.gpus()]
        assert found == expected
        assert not node.ill()
        two = [DeviceShare(uuid=gpu.uuid, memory_mib=gpu.memory_mib, cores=100) for gpu in node.gpus()[:2]]
        pod = node.bind_shares("pod", (tuple(two),))
        await node.runs("pod")
        assert node.visible(pod) == ",".join(share.uuid for share in two)
        assert not node.problems()


@pytest.mark.parametrize("profile", ["h100"], indirect=True)
async def test_a_gpu_of_nvidias_mock_that_is_lost_is_the_only_unhealthy_one_until_it_returns(
    mock: Path, profile: Any, tmp_path: Path
) -> None:
    overrides = tmp_path / "overrides.yaml"
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    async with daemon("--host-root", str(tmp_path), *OPTIONS, library=mock / "libnvidia-ml.so.1") as node:
        assert len(node.gpus()) == len(profile["devices"])
        overrides.write_text(yaml.safe_dump({"devices": {1: {"failure": {"mode": "lost"}}}}))
        await until(lambda: node.ill() == {1})
        overrides.write_text("{}")
        await until(lambda: not node.ill())
        assert not node.problems()
