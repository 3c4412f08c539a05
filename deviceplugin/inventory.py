"""One reading of this node's GPUs, judged: what the node shares of them, and why not more. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from deviceplugin.configuration.table import Configuration
from deviceplugin.container.edits import Hardware
from deviceplugin.health.step import FABRIC_PROBLEM
from deviceplugin.machine.discovery import left_out, resources
from deviceplugin.machine.features import feature_labels
from deviceplugin.machine.readings import GpuReading, MachineReading, MissingGpu
from deviceplugin.machine.topology import asymmetric_pairs, build_topology, pair_scores
from program.words import as_sentence
from proto.devices import Device, DeviceUUID, PairScores


class GpusUnavailable(Exception):
    """No driver, or no GPU; one sentence. `needs_restart`: only a new process can see them again. `are_gone`: the
    driver answered that no GPU works. Without an answer nothing is known, and programs on the GPUs may still run.
    """

    def __init__(self, sentence: str, *, needs_restart: bool = False, are_gone: bool = False) -> None:
        super().__init__(sentence)
        self.needs_restart = needs_restart
        self.are_gone = are_gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One reading, judged."""

    devices: tuple[Device, ...] = ()
    """The devices of the shared resource, by NVML index."""
    kept: tuple[Device, ...] = ()
    """The devices as pods that have begun may hold them: with what the driver's GPUs have, whatever is shared now."""
    memory_mib: Mapping[DeviceUUID, int] = field(default_factory=dict)
    """The memory that each GPU has, however often its node promises it."""
    scores: PairScores = field(default_factory=dict)
    instances: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    """MIG devices by the kubelet resource of their profile."""
    problems: Mapping[DeviceUUID, str] = field(default_factory=dict)
    """The reason why each unhealthy GPU is unhealthy, as a sentence."""
    physical: frozenset[DeviceUUID] = frozenset()
    """The GPUs whose health decides, also those that are not advertised themselves."""
    parents: Mapping[DeviceUUID, DeviceUUID] = field(default_factory=dict)
    """The GPU that each MIG instance is a part of."""
    hardware: Hardware = field(default_factory=Hardware)
    notes: tuple[str, ...] = ()
    """Notes for people on this reading, one sentence each: calls that failed, GPUs that are not advertised."""
    disagreements: tuple[str, ...] = ()
    """Pairs whose two directions read differently, one sentence each."""
    labels: Mapping[str, str] | None = None
    """The Node's labels about the GPUs; None before they were read."""
    missing: tuple[MissingGpu, ...] = ()
    """GPUs that should be here: nothing is known of them, so they cannot be registered."""
    is_simulated: bool = False
    """None of these GPUs is real."""
    is_doubtful: bool = False
    """A call failed, perhaps by chance, and what was read before stands in its place."""


def inventory_of(machine: MachineReading, offered: MachineReading, configuration: Configuration) -> Inventory:
    """Judges a reading. `offered` is it without what the driver keeps for itself. Raises GpusUnavailable if no GPU can
    be shared.
    """
    sharing, resource = configuration.sharing, configuration.kubelet.resource_name
    found = dict(resources(offered, sharing, resource))
    notes = (*machine.problems, *left_out(machine, sharing))
    if not any(found.values()):
        nothing = "the NVIDIA driver shows no GPU on this machine that can be shared"
        are_gone = not any(gpu.healthy for gpu in machine.gpus)
        raise GpusUnavailable(as_sentence("; ".join([nothing, *notes])), are_gone=are_gone)
    devices = found.pop(resource)
    return Inventory(
        devices=devices,
        kept=resources(machine, sharing.of_running_pods(), resource)[resource],
        scores=pair_scores(build_topology(machine), [device.uuid for device in devices]),
        instances=found,
        problems={gpu.uuid: gpu.problem for gpu in machine.gpus if not gpu.healthy},
        memory_mib={gpu.uuid: gpu.memory_mib for gpu in machine.gpus if gpu.memory_mib is not None},
        physical=frozenset(gpu.uuid for gpu in machine.gpus),
        parents={uuid: mig.parent for uuid, mig in machine.mig_devices.items()},
        labels=feature_labels(machine, sharing),
        notes=notes,
        missing=tuple(gpu for gpu in machine.missing if not sharing.hides(gpu.uuid, gpu.index)),
        is_simulated=machine.is_simulated,
        is_doubtful=machine.is_doubtful,
        disagreements=tuple(pair.sentence for pair in asymmetric_pairs(machine)),
    )


def with_fabric_problems(machine: MachineReading) -> MachineReading:
    """Makes GPUs of a broken fabric unhealthy. The health polls find the same; until the first of them, nothing may be
    offered either.
    """
    return replace(machine, gpus=tuple(gpu if gpu.problem else _with_fabric_problem(gpu) for gpu in machine.gpus))


def _with_fabric_problem(gpu: GpuReading) -> GpuReading:
    is_broken = gpu.fabric is not None and gpu.fabric.is_broken and not gpu.mig_enabled
    return replace(gpu, problem=FABRIC_PROBLEM) if is_broken else gpu


def with_vanished(before: Sequence[Device], now: Sequence[Device]) -> tuple[Device, ...]:
    """Returns the GPUs found now, and those of before that vanished, as unhealthy: pods may still hold them."""
    found = {device.uuid for device in now}
    lost = (replace(device, healthy=False) for device in before if device.uuid not in found)
    return tuple(sorted((*now, *lost), key=lambda device: (device.index, device.uuid)))


def with_missing(before: Inventory, now: Inventory) -> Inventory:
    """Keeps GPUs that vanished, as unhealthy, unless a new GPU is in their place."""
    addresses = {**before.hardware.pci_addresses, **now.hardware.pci_addresses}
    places = {addresses[gpu] for gpu in now.physical - before.physical if gpu in addresses}

    def kept(devices: tuple[Device, ...]) -> list[Device]:
        gpus = [(device, before.parents.get(device.uuid, device.uuid)) for device in devices]
        return [device for device, gpu in gpus if gpu in now.physical or addresses.get(gpu) not in places]

    instances = {
        resource: with_vanished(kept(before.instances.get(resource, ())), now.instances.get(resource, ()))
        for resource in sorted({*before.instances, *now.instances})
    }
    return replace(
        now,
        devices=with_vanished(kept(before.devices), now.devices),
        instances=instances,
        parents={**before.parents, **now.parents},
        hardware=replace(now.hardware, pci_addresses=addresses),
    )
