"""What containers can open of the GPUs with NVIDIA's own runtime: those that the daemon prepares, and others."""

import pytest

from deviceplugin.container.edits import DeviceListStrategy
from deviceplugin.slots.slot import NOT_APPLIED
from simulation import machines
from simulation.machines.description import MigDevice
from tests.nvidia.conftest import MakeHost
from tests.nvidia.driver import with_mig
from tests.nvidia.programs import Programs
from tests.nvidia.runtime import Refused, Seen, Toolkit
from tests.nvidia.slots import SLOT, write_slot

pytestmark = pytest.mark.nvidia

DGX = machines.load("dgxa100-8x-a100-40g")
ALL = tuple(range(len(DGX.gpus)))
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NVIDIAS = "nvidia-container-runtime"
HARDENED = Toolkit(obeys_unprivileged_env=False)


@pytest.mark.parametrize(
    ("env", "opened", "has_cuda"),
    [
        (f"{VISIBLE}=void", (), False),
        (f"{VISIBLE}=none", (), True),
        (f"{VISIBLE}=", (), False),
        (f"{VISIBLE}=all", ALL, True),
        ("NOTHING=", (), False),
        ("CUDA_VERSION=11.0", ALL, True),
    ],
)
def test_what_a_variable_opens_by_nvidias_runtime(
    host_of: MakeHost, env: str, opened: tuple[int, ...], has_cuda: bool
) -> None:
    """Why a pod's own variables are refused, CUDA_VERSION among them, and why `void` is written and never `none`."""
    seen = host_of(DGX).by_runc(env, "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    assert (seen.opened, seen.has_cuda) == (opened, has_cuda)


def test_gpus_by_uuid_are_opened_and_a_slot_that_was_not_applied_opens_none(host_of: MakeHost) -> None:
    host = host_of(DGX)
    chosen = ",".join((host.driver.uuid(1), host.driver.uuid(3)))
    assert host.by_runc(f"{VISIBLE}={chosen}").opened == (1, 3)
    for mode in ("auto", "cdi"):
        host.set(Toolkit(mode=mode))
        with pytest.raises(Refused, match=NOT_APPLIED):
            host.by_runc(f"{VISIBLE}={NOT_APPLIED}")
    assert host.by_runc(f"{VISIBLE}={NOT_APPLIED}", runtime="runc").opened == ()


def test_a_hardened_toolkit_shows_no_gpu_by_variables_of_unprivileged_containers(host_of: MakeHost) -> None:
    host = host_of(DGX)
    host.set(Toolkit(obeys_unprivileged_env=False))
    for value in ("all", host.driver.uuid(1)):
        assert host.by_runc(f"{VISIBLE}={value}") == Seen(opened=(), files=frozenset(), has_cuda=False)


def test_a_mig_instance_is_opened_with_its_own_rights_alone(host_of: MakeHost) -> None:
    host = host_of(with_mig(DGX, [MigDevice("3g.20gb", 19968, 1, 0), MigDevice("1g.5gb", 4864, 9, 0)]))
    seen = host.by_runc(f"{VISIBLE}={host.driver.mig_uuids(0)[1]}")
    assert seen.opened == (0,)
    # config, monitor, the first instance's two, then its own two
    assert {name for name in seen.files if name.startswith("nvidia-cap")} == {"nvidia-cap5", "nvidia-cap6"}


CONTAINERS = (
    # strategy, runtime, toolkit, what is opened of GPUs 1 and 3: None where the container is refused
    ("envvar", NVIDIAS, Toolkit(), (1, 3)),
    ("envvar", NVIDIAS, Toolkit(mode="cdi"), None),
    ("envvar", NVIDIAS, HARDENED, ()),
    ("volume-mounts", NVIDIAS, Toolkit(accepts_volume_mounts=True), (1, 3)),
    ("volume-mounts", NVIDIAS, Toolkit(), None),
    ("volume-mounts", NVIDIAS, HARDENED, ()),
    *(
        (strategy, *how, (1, 3))
        for strategy in ("cdi-cri", "cdi-annotations", "driver-files")
        for how in ((NVIDIAS, Toolkit()), (NVIDIAS, Toolkit(mode="cdi")), (NVIDIAS, HARDENED), ("runc", Toolkit()))
    ),
)


@pytest.mark.parametrize("case", CONTAINERS)
def test_a_container_with_a_slot_opens_its_gpus_by_real_containerd(
    programs: Programs, host_of: MakeHost, case: tuple[str, str, Toolkit, tuple[int, ...] | None]
) -> None:
    """The image asks for all GPUs, and for those of legacy images; the slot is applied after both."""
    strategy, runtime, toolkit, opened = case
    host = host_of(DGX)
    host.set(toolkit)
    write_slot(programs, host, DeviceListStrategy(strategy), (1, 3))
    env = (f"{VISIBLE}=all", "CUDA_VERSION=12.0", f"{VISIBLE}={NOT_APPLIED}")
    try:
        seen = host.by_containerd(*env, device=SLOT, runtime=runtime)
    except Refused:
        assert opened is None
    else:
        assert (seen.opened, seen.has_cuda) == (opened, bool(opened))
