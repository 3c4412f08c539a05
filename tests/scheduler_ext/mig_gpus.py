"""An A100 in MIG mode, as HAMi 2.10 registers it."""

from dataclasses import replace

from proto.devices import MIG_MODE, Device, MigPlacement, MigProfile
from tests.scheduler_ext.gpus import device


def profile(name: str, memory_mib: int, cores: int, size: int, *starts: int) -> MigProfile:
    placements = tuple(MigPlacement(start=start, size=size) for start in starts)
    return MigProfile(name=name, memory_mib=memory_mib, cores=cores, slice_count=int(name[0]), placements=placements)


A100_PROFILES = (
    profile("1g.5gb", 4864, 15, 1, 0, 1, 2, 3, 4, 5, 6),
    profile("2g.10gb", 9856, 29, 2, 0, 2, 4),
    profile("3g.20gb", 19968, 43, 4, 0, 4),
    profile("7g.40gb", 40192, 100, 8, 0),
)


def mig_device(number: int) -> Device:
    return replace(device(number, replicas=7), mode=MIG_MODE, mig_profiles=A100_PROFILES)
