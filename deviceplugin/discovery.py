"""Readings of a machine to the GPUs its node advertises."""

from dataclasses import dataclass
from typing import Literal

from deviceplugin.readings import GpuReading, MachineReading
from proto.devices import Device, DeviceUUID

Mode = Literal["hami-core", "mig", "mps"]

DISPLAY_CARDS = ("DGX Display", "NVIDIA DGX Display")
"""The DGX Station's console card; no GPU to compute on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSharing:
    """How a node shares its GPUs."""

    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: Mode = "hami-core"
    preconfigured_memory_mib: int = 0
    """Memory of GPUs that NVML tells none for (unified memory); 0 leaves such GPUs out."""
    hidden_uuids: frozenset[DeviceUUID] = frozenset()
    hidden_indices: frozenset[int] = frozenset()


def discover_devices(machine: MachineReading, sharing: NodeSharing) -> tuple[Device, ...]:
    """The devices to advertise, by index. A GPU without a known amount of memory cannot be shared and is left out."""
    gpus = sorted(machine.gpus, key=lambda gpu: gpu.index)
    return tuple(device for gpu in gpus if (device := _device(gpu, sharing)) is not None)


def _device(gpu: GpuReading, sharing: NodeSharing) -> Device | None:
    memory_mib = gpu.memory_mib if gpu.memory_mib is not None else sharing.preconfigured_memory_mib
    hidden = gpu.uuid in sharing.hidden_uuids or gpu.index in sharing.hidden_indices
    if hidden or gpu.name in DISPLAY_CARDS or memory_mib <= 0 or not gpu.uuid:
        return None
    is_mig = sharing.mode == "mig"
    return Device(
        uuid=gpu.uuid,
        index=gpu.index,
        slots=sharing.split_count,
        memory_mib=memory_mib if is_mig else int(memory_mib * sharing.memory_scaling),
        # Truncated as HAMi does it: a scaling of 1.15 gives 114.
        cores=100 if is_mig else int(sharing.core_scaling * 100),
        type=device_type(gpu.name),
        numa=gpu.numa,
        mode=sharing.mode,
        healthy=gpu.healthy,
    )


def device_type(name: str) -> str:
    """The product name as registered: schedulers look for the vendor's word at its beginning."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"
