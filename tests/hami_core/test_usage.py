"""The daemon's reader of what HAMi-core's processes use, on files that the library itself wrote."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.metrics.sampling import has_ended, host_is_seen
from deviceplugin.region_files import RegionReader
from deviceplugin.usage.shared_region import RegionDevice
from tests.hami_core.node import CONTEXT_MIB, CoreContainer, CoreNode, SimulatedGpu, part, uuid

pytestmark = pytest.mark.hami_core

GPU = SimulatedGpu(uuid=uuid("a"), memory_mib=16_384, bus="00000000:10:00.0")
MIB = 1 << 20


def counted(container: CoreContainer) -> RegionDevice:
    """What a daemon reads that sees the host's processes."""
    folder: Path = container.node.root / "vgpu" / "containers"
    files = RegionReader(str(folder), has_ended=has_ended).read()
    assert not files.problems
    (device,) = files.regions[container.facts.pod_uid, container.facts.name].devices
    return device


def test_limit_and_use_are_those_of_the_container(core_node: Callable[..., CoreNode]) -> None:
    container = core_node(GPU).container(part(GPU, 4_000, cores=30))
    container.start().begun()("alloc 1000")
    container.start().begun()("alloc 500")
    device = counted(container)
    assert (device.uuid, device.limit_bytes, device.core_limit_percent) == (GPU.uuid, 4_000 * MIB, 30)
    assert device.total_bytes <= (1_500 + 2 * CONTEXT_MIB) * MIB
    assert device.total_bytes >= 1_500 * MIB


def test_a_killed_process_uses_nothing(core_node: Callable[..., CoreNode]) -> None:
    if not host_is_seen():
        pytest.skip("the host's processes are not seen here")
    container = core_node(GPU).container(part(GPU, 4_000))
    tenant = container.start().begun()
    tenant("alloc 1000")
    tenant.kill()
    assert counted(container).total_bytes == 0
