"""What HAMi-core holds a container to, and what it does not: the claims of docs/hami-core.md, on the library itself."""

from collections.abc import Callable

import pytest

from deviceplugin.container.hami_core import CannotLimit
from tests.hami_core.node import CONTEXT_MIB, OUT_OF_MEMORY, CoreNode, SimulatedGpu, holds, part, uuid, whole

pytestmark = pytest.mark.hami_core

SMALL = SimulatedGpu(uuid=uuid("a"), memory_mib=16_384, bus="00000000:10:00.0", multiprocessors=40)
LARGE = SimulatedGpu(uuid=uuid("b"), memory_mib=81_920, bus="00000000:20:00.0")
MakeNode = Callable[..., CoreNode]


@pytest.mark.parametrize(("program", "lookup"), [("tenant", "dlsym"), ("tenant", "address"), ("tenant-linked", "")])
def test_a_part_is_held_however_the_program_finds_cuda(core_node: MakeNode, program: str, lookup: str) -> None:
    container = core_node(SMALL, LARGE).container(part(LARGE, 3_000))
    tenant = container.start(program, env={"TENANT_LOOKUP": lookup}).begun()
    assert tenant("devices")[2:] == [f"{LARGE.uuid.removeprefix('GPU-')}:3000"]
    assert holds(tenant.filled_mib(), 3_000)
    assert tenant.total_mib() == 3_000


def test_the_processes_of_a_container_share_its_part_and_two_containers_do_not(core_node: MakeNode) -> None:
    node = core_node(SMALL)
    first, other = node.container(part(SMALL, 4_000), pod="1"), node.container(part(SMALL, 4_000), pod="2")
    one, two = first.start().begun(), first.start().begun()
    assert one("alloc 2000")[0] == "0"
    assert two("alloc 2000")[0] == str(OUT_OF_MEMORY)
    assert two("alloc 1400")[0] == "0"
    assert holds(other.start().begun().filled_mib(), 4_000)


def test_the_memory_of_a_killed_process_returns_to_its_container(core_node: MakeNode) -> None:
    container = core_node(SMALL).container(part(SMALL, 4_000))
    one, two = container.start().begun(), container.start().begun()
    one("alloc 3000")
    one.kill()
    codes = [two("alloc 3000")[0] for _ in range(2)]  # a refused allocation makes the library look for dead processes
    assert "0" in codes
    assert container.node.held_mib()[SMALL.uuid] == [3_000 + CONTEXT_MIB]


@pytest.mark.parametrize("how", ["alloc", "managed", "pitch", "vmm"])
def test_memory_of_this_kind_is_counted(core_node: MakeNode, how: str) -> None:
    tenant = core_node(SMALL).container(part(SMALL, 2_000)).start().begun()
    assert holds(tenant.filled_mib(how, 5_000), 2_000)


@pytest.mark.parametrize("how", ["pool", "array"])
def test_memory_of_this_kind_is_not_counted_as_the_document_warns(core_node: MakeNode, how: str) -> None:
    tenant = core_node(SMALL).container(part(SMALL, 2_000)).start().begun()
    assert tenant.filled_mib(how, 5_000) == (5_000, 0)


def test_an_asynchronous_allocation_beyond_the_part_fails_with_a_code_of_no_cuda(core_node: MakeNode) -> None:
    tenant = core_node(SMALL).container(part(SMALL, 2_000)).start().begun()
    assert tenant.filled_mib("async", 5_000)[1] == -1


def test_whole_gpus_come_without_the_library_and_each_worker_fills_its_own(core_node: MakeNode) -> None:
    container = core_node(SMALL, LARGE).container(whole(SMALL), whole(LARGE))
    workers = [container.start(env={"CUDA_VISIBLE_DEVICES": str(number)}).begun() for number in range(2)]
    assert not any(each.loads("libvgpu") for each in workers)
    assert [each("alloc 16000")[0] for each in workers] == ["0", "0"]


def test_a_mig_instance_comes_without_the_library(core_node: MakeNode) -> None:
    instance = SimulatedGpu(
        uuid=uuid("c").__class__("MIG-" + uuid("c").removeprefix("GPU-")), memory_mib=9_728, bus="-", multiprocessors=14
    )
    tenant = core_node(LARGE, instance).container(part(instance, 9_728)).start().begun()
    assert not tenant.loads("libvgpu")
    assert holds(tenant.filled_mib(), 9_728)


def test_parts_of_several_gpus_are_refused(core_node: MakeNode) -> None:
    node = core_node(SMALL, LARGE)
    with pytest.raises(CannotLimit, match="parts of several GPUs, here of 2"):
        node.container(part(SMALL, 4_000), part(LARGE, 4_000))


def test_parts_of_several_gpus_are_not_held_where_a_setting_allows_them(core_node: MakeNode) -> None:
    """Why they are refused: a launcher's worker that looks at NVML first gets a GPU nearly whole."""
    container = core_node(SMALL, LARGE).container(part(SMALL, 4_000), part(LARGE, 4_000), allowed=True)
    worker = container.start(env={"CUDA_VISIBLE_DEVICES": "1"})
    worker("nvml")
    assert worker.begun().filled_mib(most=40_000) == (40_000, 0)


def test_a_process_with_a_cleared_environment_is_held_by_the_file_of_limits_or_not_at_all(core_node: MakeNode) -> None:
    """The file is there for the releases that read it in time; the others let the process have more than its part."""
    container = core_node(SMALL).container(part(SMALL, 2_000))
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=2000m" in container.shell("cat /overrideEnv").stdout
    filled = container.start(cleared=True).begun().filled_mib(most=10_000)
    assert holds(filled, 2_000) or filled == (10_000, 0)


def test_a_container_that_starts_again_finds_nothing_of_what_its_processes_left(core_node: MakeNode) -> None:
    """A process that dies inside the library leaves a lock that would stop the next one for minutes."""
    container = core_node(SMALL).container(part(SMALL, 4_000))
    container.start().begun()("alloc 3000")
    for left in container.node.root.glob("vgpu/containers/*/*.cache"):
        left.write_bytes(b"\xff" * left.stat().st_size)
    container.restart()
    assert holds(container.start().begun().filled_mib(), 4_000)


def test_a_library_linked_with_cuda_stops_every_program_of_a_container_without_cuda(core_node: MakeNode) -> None:
    """What troubleshooting.md explains: the newer of HAMi's images link it so."""
    node = core_node(SMALL)
    for library, status in ((node.programs.library, 0), (node.programs.linked_library, 127)):
        container = core_node(SMALL, library=library).container(part(SMALL, 2_000))
        assert container.shell("true").returncode == 0
        (container.node.folder / "etc/ld.so.conf.d/simulated-driver.conf").write_text("")
        assert container.shell("ldconfig; exec ls /").returncode == status


def test_a_limit_of_cores_slows_a_program_down_and_no_more(core_node: MakeNode) -> None:
    container = core_node(SMALL).container(part(SMALL, 4_000, cores=30))
    tenant = container.start().begun()
    tenant("launch 1000 2")  # its first seconds are not limited
    launches, seconds = map(float, tenant("launch 1000 4")[1:3])
    assert 0.2 <= launches * 0.001 / seconds <= 0.95
    assert container.node.held_mib()[SMALL.uuid] == [CONTEXT_MIB]
