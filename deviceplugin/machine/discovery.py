"""Turns readings of a machine into the devices that its node advertises, and into sentences for the others.

MIG strategies by NVIDIA/k8s-device-plugin (internal/rm/device_map.go): `none` ignores MIG: a GPU with MIG on is one
GPU, and its pod sees all its MIG devices. `single` makes MIG devices the node's resource, for nodes on which they are
all alike. `mixed` gives every profile its own resource.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from deviceplugin.machine.readings import GpuReading, MachineReading, MigReading
from proto.devices import LARGEST, MIG_RESOURCE_PREFIX, Device, DeviceUUID

Mode = Literal["hami-core", "mps"]
MigStrategy = Literal["none", "single", "mixed"]

DISPLAY_CARDS = ("DGX Display", "NVIDIA DGX Display")
"""The DGX Station's console card; no GPU to compute on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSharing:
    """The sharing of a node's GPUs."""

    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: Mode = "hami-core"
    mig_strategy: MigStrategy = "none"
    preconfigured_memory_mib: int = 0
    """Memory of GPUs for which NVML reports none (unified memory); 0 leaves such GPUs out."""
    hidden: tuple[str, ...] = ()
    """UUIDs of GPUs or of single MIG devices, and indices of GPUs."""

    def hides(self, uuid: DeviceUUID, index: int | None) -> bool:
        return uuid in self.hidden or (index is not None and str(index) in self.hidden)

    def of_running_pods(self) -> "NodeSharing":
        """Returns the sharing by which pods were placed when less was hidden or more was shared."""
        return replace(
            self,
            memory_scaling=max(self.memory_scaling, 1.0),
            core_scaling=max(self.core_scaling, 1.0),
            hidden=(),
        )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A device and its resource (None is the node's own), or why there is none; it is empty for a GPU left out on
    purpose.
    """

    device: Device | None = None
    profile: str | None = None
    why_not: str = ""


def resources(machine: MachineReading, sharing: NodeSharing, resource_name: str) -> Mapping[str, tuple[Device, ...]]:
    """Returns the devices of every kubelet resource, by index; the node's own resource is there even without one."""
    found: dict[str, list[Device]] = {resource_name: []}
    for verdict in _verdicts(machine, sharing):
        if verdict.device is not None:
            name = resource_name if verdict.profile is None else mig_resource(verdict.profile)
            found.setdefault(name, []).append(verdict.device)
    return {name: tuple(devices) for name, devices in found.items()}


def discover_devices(machine: MachineReading, sharing: NodeSharing) -> tuple[Device, ...]:
    """Returns the devices of the node's own resource, by index: those that the node's annotation registers.

    MIG devices that have a resource of their own do not belong there. The scheduler would give them to pods that
    request the node's resource, while kubelet gives the same ones to pods that request the profile.
    """
    return tuple(v.device for v in _verdicts(machine, sharing) if v.device is not None and v.profile is None)


def left_out(machine: MachineReading, sharing: NodeSharing) -> tuple[str, ...]:
    """Returns a sentence for every GPU and MIG device that ought to be advertised and cannot be."""
    return tuple(verdict.why_not for verdict in _verdicts(machine, sharing) if verdict.why_not)


def mig_resource(profile: str) -> str:
    """Kubernetes does not allow the plus sign of `1g.10gb+me`."""
    return MIG_RESOURCE_PREFIX + profile.replace("+", ".")


def device_type(name: str) -> str:
    """Returns the product name as registered: schedulers look for the vendor's word at its beginning."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


def _verdicts(machine: MachineReading, sharing: NodeSharing) -> Iterator[_Verdict]:
    """Judges each device. If the driver gives two devices the same UUID, only the first one counts."""
    seen: set[DeviceUUID] = set()
    for verdict in _each_verdict(machine, sharing):
        device = verdict.device
        if device is not None and device.uuid in seen:
            why_not = f"GPU {device.index} is not shared: the driver reports another GPU's UUID for it, {device.uuid}"
            yield _Verdict(why_not=why_not)
            continue
        seen.update([device.uuid] if device is not None else [])
        yield verdict


def _each_verdict(machine: MachineReading, sharing: NodeSharing) -> Iterator[_Verdict]:
    gpus = shown_gpus(machine, sharing)
    served = _single_kind(gpus, sharing)
    for gpu in gpus:
        if sharing.mig_strategy == "none" or not gpu.mig_enabled:
            yield _whole(gpu, sharing)
            continue
        if not gpu.mig_devices:
            yield _Verdict(why_not=f"{_named(gpu)} has MIG on and no MIG device; create some or turn MIG off")
        for mig in shown_mig_devices(gpu, sharing):
            yield _instance(gpu, mig, sharing, served)


def shown_gpus(machine: MachineReading, sharing: NodeSharing) -> tuple[GpuReading, ...]:
    """Returns the GPUs that are not to be left alone, by index."""
    return tuple(sorted((gpu for gpu in machine.gpus if not _is_hidden(gpu, sharing)), key=lambda gpu: gpu.index))


def _is_hidden(gpu: GpuReading, sharing: NodeSharing) -> bool:
    return sharing.hides(gpu.uuid, gpu.index) or gpu.name in DISPLAY_CARDS or not gpu.uuid


def shown_mig_devices(gpu: GpuReading, sharing: NodeSharing) -> tuple[MigReading, ...]:
    """Returns the MIG devices that are not to be left alone."""
    return tuple(mig for mig in gpu.mig_devices if mig.uuid not in sharing.hidden)


def _single_kind(gpus: Sequence[GpuReading], sharing: NodeSharing) -> str | None:
    """Returns the profile that the node's resource consists of under `single`; None where it is whole GPUs.

    NVIDIA's plugin gives up on a node of several kinds. Here one kind goes on serving: whole GPUs before MIG devices,
    then the profile there is most of, of equally many the first by name.
    """
    if any(not gpu.mig_enabled for gpu in gpus):
        return None
    profiles = Counter(mig.profile for gpu in gpus for mig in shown_mig_devices(gpu, sharing))
    return min(profiles, key=lambda profile: (-profiles[profile], profile), default=None)


def _whole(gpu: GpuReading, sharing: NodeSharing) -> _Verdict:
    memory_mib = gpu.memory_mib if gpu.memory_mib is not None else sharing.preconfigured_memory_mib
    if memory_mib <= 0:
        return _Verdict(
            why_not=f"{_named(gpu)} is not shared: the driver does not report its memory; preconfigure an amount for it"
        )
    shared_mib = int(memory_mib * sharing.memory_scaling)
    if shared_mib > LARGEST:
        return _Verdict(why_not=f"{_named(gpu)} is not shared: {shared_mib} MiB are more than the node can report")
    return _Verdict(
        Device(
            uuid=gpu.uuid,
            index=gpu.index,
            replicas=sharing.split_count,
            memory_mib=shared_mib,
            # Truncated as HAMi does it: a scaling of 1.15 gives 114.
            cores=int(sharing.core_scaling * 100),
            type=device_type(gpu.name),
            numa=gpu.numa,
            mode=sharing.mode,
            healthy=gpu.healthy,
        )
    )


def _instance(gpu: GpuReading, mig: MigReading, sharing: NodeSharing, served: str | None) -> _Verdict:
    """Returns a device for one container, with all its memory and cores: the hardware divides it already."""
    name = f"MIG device {mig.uuid} ({mig.profile}) of {_named(gpu)}"
    if sharing.mig_strategy == "single" and mig.profile != served:
        others = "GPUs without MIG" if served is None else f"MIG devices of profile {served}"
        return _Verdict(
            why_not=f"{name} is not shared: strategy single wants one kind of device on a node, and this node has "
            f"{others}; make them alike or choose strategy mixed"
        )
    if not mig.memory_mib:
        return _Verdict(why_not=f"{name} is not shared: the driver does not report its memory")
    if mig.memory_mib > LARGEST:
        return _Verdict(why_not=f"{name} is not shared: {mig.memory_mib} MiB are more than the node can report")
    device = Device(
        uuid=mig.uuid,
        index=gpu.index,
        replicas=1,
        memory_mib=mig.memory_mib,
        cores=100,
        type=f"{device_type(gpu.name)} MIG {mig.profile}",
        numa=gpu.numa,
        mode="hami-core",
        healthy=gpu.healthy,
    )
    return _Verdict(device, mig.profile if sharing.mig_strategy == "mixed" else None)


def _named(gpu: GpuReading) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"
