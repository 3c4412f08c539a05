"""Chooses the MIG instance that a container gets of a GPU whose instances are made on demand.

Sources: HAMi v2.10, pkg/device/nvidia, for the order; NVIDIA's MIG user guide for placements.
"""

from collections.abc import Collection, Iterator

from proto.devices import DeviceShare, MigInstance, MigPlacement, MigProfile
from scheduler_ext.cluster.snapshot import GpuUsage

_FROM_THE_END = ("1g.", "3g.")
"""Small and half-sized instances start at the far end, which keeps the near end free for larger ones."""


def instance_share(gpu: GpuUsage, memory_mib: int) -> DeviceShare | None:
    """Returns a share of the smallest free instance with that much memory; None without one. It has the instance's own
    memory and cores.
    """
    for profile, placement in _candidates(gpu.device.mig_profiles, memory_mib):
        if is_free(placement, gpu.placements):
            instance = MigInstance(profile=profile.name, placement=placement)
            return DeviceShare(
                uuid=gpu.device.uuid, memory_mib=profile.memory_mib, cores=profile.cores, instance=instance
            )
    return None


def is_free(placement: MigPlacement, occupied: Collection[MigPlacement]) -> bool:
    return not any(placement.overlaps(other) for other in occupied)


def _candidates(profiles: Collection[MigProfile], memory_mib: int) -> Iterator[tuple[MigProfile, MigPlacement]]:
    """Yields profiles with enough memory and their placements, in the order in which they are tried."""
    for profile in sorted(profiles, key=lambda each: (each.memory_mib, each.slice_count)):
        if profile.memory_mib >= memory_mib:
            backwards = profile.name.startswith(_FROM_THE_END)
            for placement in sorted(profile.placements, key=lambda each: each.start, reverse=backwards):
                yield profile, placement
