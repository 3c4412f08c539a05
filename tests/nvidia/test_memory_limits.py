"""The driver's limits of GPU memory by control group, as NVIDIA's own hook sets them before a container starts."""

import pytest
from msgspec.structs import replace

from deviceplugin.container.edits import DeviceListStrategy
from deviceplugin.slots.slot import NOT_APPLIED
from simulation import machines
from simulation.machines.description import MachineDescription, MigDevice
from tests.nvidia.conftest import MakeHost
from tests.nvidia.driver import with_mig
from tests.nvidia.programs import Programs
from tests.nvidia.runtime import LIMITS, Host, Refused, Toolkit
from tests.nvidia.slots import SLOT, write_slot

pytestmark = pytest.mark.nvidia

MIB = 1 << 20
VISIBLE, NVIDIAS = "NVIDIA_VISIBLE_DEVICES", "nvidia-container-runtime"
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"


def with_release(driver: str) -> MachineDescription:
    machine = machines.load("dgxa100-8x-a100-40g")
    return replace(machine, software=replace(machine.software, driver=driver))


def visible(host: Host, *gpus: int) -> str:
    return f"{VISIBLE}=" + ",".join(map(host.driver.uuid, gpus))


def mib(host: Host) -> list[tuple[str, int, int]]:
    """UUID, soft and hard limit of each call."""
    return [(uuid, int(soft) // MIB, int(hard) // MIB) for uuid, soft, hard, _ in host.limits()]


@pytest.mark.parametrize(("env", "soft"), [((f"{REQUEST}=0", f"{LIMIT}=1000"), 0), ((f"{LIMIT}=1000",), 1000)])
def test_nvidias_hook_limits_each_gpu_of_the_container(host_of: MakeHost, env: tuple[str, ...], soft: int) -> None:
    """A limit alone is also what is reserved, so that a container which reserves nothing needs both variables."""
    host = host_of(with_release("615.10.01"))
    assert host.by_runc(visible(host, 1, 2), *env).opened == (1, 2)
    assert mib(host) == [(host.driver.uuid(gpu), soft, 1000) for gpu in (1, 2)]
    groups = {words[3] for words in host.limits()}
    assert len(groups) == 1
    assert groups.pop().startswith("/sys/fs/cgroup/")


def test_a_container_that_names_its_gpus_itself_has_them_without_a_limit(host_of: MakeHost) -> None:
    """Why pods that do so are refused: no daemon prepares them."""
    host = host_of(with_release("615.10.01"))
    assert host.by_runc(f"{VISIBLE}=all").opened == tuple(range(8))
    assert not host.limits()


@pytest.mark.parametrize("env", [(f"{LIMIT}=much",), (f"{REQUEST}=2000", f"{LIMIT}=1000")])
def test_a_container_whose_memory_limit_makes_no_sense_to_nvidias_hook_does_not_start(
    host_of: MakeHost, env: tuple[str, ...]
) -> None:
    host = host_of(with_release("615.10.01"))
    with pytest.raises(Refused):
        host.by_runc(visible(host, 1), *env)
    assert not host.limits()


def test_a_container_with_a_memory_limit_does_not_start_with_a_driver_that_has_none(host_of: MakeHost) -> None:
    host = host_of(with_release("580.95.05"))
    with pytest.raises(Refused, match="failed to set memory limits"):
        host.by_runc(visible(host, 1), f"{REQUEST}=0", f"{LIMIT}=1000")


def test_nvidias_hook_ignores_the_memory_limit_of_a_mig_instance(host_of: MakeHost) -> None:
    """Its size holds it."""
    host = host_of(with_mig(with_release("615.10.01"), [MigDevice("1g.5gb", 4864, 9, 0)]))
    uuid = host.driver.mig_uuids(0)[0]
    assert host.by_runc(f"{VISIBLE}={uuid}", f"{REQUEST}=0", f"{LIMIT}=1000").opened == (0,)
    assert not host.limits()


@pytest.mark.parametrize(
    ("strategy", "runtime", "mode"),
    [
        ("envvar", NVIDIAS, "auto"),
        ("volume-mounts", NVIDIAS, "auto"),
        ("cdi-cri", NVIDIAS, "auto"),
        ("cdi-cri", NVIDIAS, "cdi"),
        ("cdi-cri", "runc", "auto"),
        ("cdi-annotations", "runc", "auto"),
    ],
)
def test_the_driver_limits_a_container_with_a_slot_by_nvidias_hook(
    programs: Programs, host_of: MakeHost, strategy: str, runtime: str, mode: str
) -> None:
    host = host_of(with_release("615.10.01"))
    host.set(Toolkit(mode=mode, accepts_volume_mounts=True))
    write_slot(programs, host, DeviceListStrategy(strategy), (1, 3), driver_mib=(1000, 1000))
    assert host.by_containerd(f"{VISIBLE}={NOT_APPLIED}", device=SLOT, runtime=runtime).opened == (1, 3)
    assert mib(host) == [(host.driver.uuid(gpu), 0, 1000) for gpu in (1, 3)]


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_an_image_with_limits_of_its_own_gets_by_nvidias_hook_the_smallest_that_was_decided(
    programs: Programs, host_of: MakeHost, strategy: str
) -> None:
    """Its hook runs behind ours, whose limits it replaces until the daemon looks again."""
    host = host_of(with_release("615.10.01"))
    host.set(Toolkit(accepts_volume_mounts=True))
    ours = f"cat {LIMITS} > /run/limits-at-our-hook 2>&1; true"
    write_slot(programs, host, DeviceListStrategy(strategy), (1, 3), driver_mib=(1000, 5000), hook=ours)
    env = (f"{VISIBLE}={NOT_APPLIED}", f"{REQUEST}=30000", f"{LIMIT}=30000")
    assert host.by_containerd(*env, device=SLOT, runtime=NVIDIAS).opened == (1, 3)
    assert mib(host) == [(host.driver.uuid(gpu), 0, 1000) for gpu in (1, 3)]
    assert "No such file" in host.read("/run/limits-at-our-hook")
