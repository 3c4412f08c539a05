"""The flat text that the fake NVML reads, and a sysfs tree to go with it."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from deviceplugin.machine_description import (
    FABRIC_STATES,
    LEVELS,
    P2P_STATUSES,
    FabricState,
    Gpu,
    MachineDescription,
    cpu_numbers,
    gpu_uuid,
)

MACHINE_FILE_VARIABLE = "TOPOGPU_FAKE_NVML_MACHINE"
"""Environment variable that tells the fake library which file to read."""

XID = 8
"""nvmlEventTypeXidCriticalError."""

EVERY_GPU = -1
_HIDDEN_BUS = "FFFFFFFF:FF:FF.0"
_REMOTE_GPU, _REMOTE_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t; 1 is an IBM CPU
_MIG = {"unsupported": -1, "disabled": 0, "enabled": 1}

ERRORS = {
    "SUCCESS": 0,
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "LIBRARY_NOT_FOUND": 12,
    "FUNCTION_NOT_FOUND": 13,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "INSUFFICIENT_RESOURCES": 23,
    "ARGUMENT_VERSION_MISMATCH": 25,
    "NOT_READY": 27,
    "GPU_NOT_FOUND": 28,
    "UNKNOWN": 999,
}
"""nvmlReturn_t by name, without NVML_ERROR_."""


class UnknownErrorName(Exception):
    """A description or a fault names an NVML error that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFails:
    """`call` on one GPU answers `error`; `*` is every call, `field:N` one field, `nvlink` every link."""

    gpu: int
    call: str
    error: str
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """One NVLink of a GPU goes down (or up again)."""

    gpu: int
    link: int
    up: bool = False
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTypesUnknown:
    """The driver does not tell what the NVLinks of one GPU, or of all, lead to; they work as before."""

    gpu: int = EVERY_GPU
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricIs:
    """The fabric registration of one GPU, or of all, reads differently."""

    state: FabricState
    status: str = "SUCCESS"
    gpu: int = EVERY_GPU
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event for whoever registered for its type before: told once."""

    gpu: int
    data: int
    type: int = XID
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Everything listed before for one GPU, or for all, is over."""

    gpu: int = EVERY_GPU
    at_seconds: float = 0.0


Fault = CallFails | LinkState | LinkTypesUnknown | FabricIs | Event | Cleared


def lost_gpu(gpu: int, at_seconds: float = 0.0) -> CallFails:
    """The GPU falls off the bus."""
    return CallFails(gpu=gpu, call="*", error="GPU_IS_LOST", at_seconds=at_seconds)


def error_number(name: str) -> int:
    """nvmlReturn_t of a name, with or without NVML_ERROR_. Raises UnknownErrorName."""
    number = ERRORS.get(name.removeprefix("NVML_ERROR_"))
    if number is None:
        raise UnknownErrorName(f"{name!r} is no NVML error; known are {', '.join(ERRORS)}")
    return number


def write_machine_file(
    description: MachineDescription, path: Path, instance: str, faults: Sequence[Fault] = ()
) -> None:
    """Write it whole or not at all, so that a reader never sees half; `instance` makes the UUIDs this node's own."""
    text = render_machine_file(description, instance, faults)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def render_machine_file(description: MachineDescription, instance: str, faults: Sequence[Fault] = ()) -> str:
    """The flat text of one machine. Raises UnknownErrorName."""
    return "\n".join([*_machine_lines(description, instance), *map(_fault_line, faults), "end", ""])


def _machine_lines(machine: MachineDescription, instance: str) -> Iterator[str]:
    yield f"# {machine.title}"
    yield f"init {error_number(machine.software.init)}"
    yield f"driver {machine.software.driver}"
    yield f"nvml {machine.software.nvml}"
    yield f"cuda {machine.software.cuda}"
    yield f"gpus {len(machine.gpus)}"
    for call in sorted(machine.unsupported):
        yield f"refuse {call} {ERRORS['NOT_SUPPORTED']}"
    for index, gpu in enumerate(machine.gpus):
        yield _gpu_line(machine, index, gpu, instance)
        yield from _place_lines(machine, index, gpu)
        yield from _link_lines(machine, index)
        for other in range(index + 1, len(machine.gpus)):
            yield f"level {index} {other} {10 * LEVELS.index(machine.level(index, other))}"


def _gpu_line(machine: MachineDescription, index: int, gpu: Gpu, instance: str) -> str:
    vendor, _, device = gpu.pci_id.partition(":")
    pcie = gpu.pcie
    pcie_numbers = (pcie.gen, pcie.width, pcie.gen_now, pcie.width_now) if pcie else (0, 0, 0, 0)
    words: list[object] = [
        index,
        gpu_uuid(machine.id, index, instance),
        gpu.bus,
        f"{device}{vendor}",  # NVML's combined id has the device in the upper half
        index,  # the minor number of /dev/nvidiaN
        *gpu.compute_capability,
        gpu.memory_mib,
        gpu.reserved_mib,
        _MIG[gpu.mig],
        *pcie_numbers,
        -1 if gpu.own_numa is None else gpu.own_numa,
        int(gpu.ecc),
        gpu.c2c_mbps,
        P2P_STATUSES.index(gpu.p2p.pci),
        machine.nvlink.version if machine.nvlink else 0,
        machine.nvlink.mbps if machine.nvlink else 0,
        gpu.name,
    ]
    return "gpu " + " ".join(map(str, words))


def _place_lines(machine: MachineDescription, index: int, gpu: Gpu) -> Iterator[str]:
    """Affinity masks; a GPU whose node nobody knows is as near to every CPU."""
    near = [node for node in machine.host.numa if gpu.numa in (-1, node.id)]
    yield f"nodes {index} {','.join(str(node.id) for node in near)}"
    yield f"cpus {index} {','.join(node.cpus for node in near)}"


def _link_lines(machine: MachineDescription, index: int) -> Iterator[str]:
    for end in machine.links(index):
        remote = _REMOTE_SWITCH if end.peer is None else _REMOTE_GPU
        yield f"link {index} {remote} {end.bus or _HIDDEN_BUS}"
    fabric = machine.fabric
    if fabric is not None:
        cluster = "0" * 32 if fabric.cluster == "zero" else fabric.cluster.replace("-", "")
        state = FABRIC_STATES.index(fabric.state)
        yield f"fabric {index} {state} {error_number(fabric.status)} {fabric.clique} {cluster}"


def _fault_line(fault: Fault) -> str:
    start = f"fault {fault.at_seconds:.3f} {fault.gpu}"
    match fault:
        case CallFails(call=call, error=error):
            return f"{start} call {call} {error_number(error)} 0"
        case LinkState(link=link, up=up):
            return f"{start} link - {link} {int(up)}"
        case LinkTypesUnknown():
            return f"{start} types - 0 0"
        case FabricIs(state=state, status=status):
            return f"{start} fabric - {FABRIC_STATES.index(state)} {error_number(status)}"
        case Event(type=kind, data=data):
            return f"{start} event - {kind} {data}"
        case Cleared():
            return f"{start} clear - 0 0"
    assert_never(fault)


def write_sysfs(description: MachineDescription, root: Path) -> None:
    """The part of /sys that discovery reads: GPUs' numa_node, classes of GPUs and switches, nodes' cpulists."""
    for gpu in description.gpus:
        device = _pci_device(root, gpu.bus)
        (device / "numa_node").write_text(f"{gpu.numa}\n", encoding="utf-8")
        (device / "class").write_text("0x030200\n", encoding="utf-8")
    switches = description.nvlink.switches if description.nvlink else None
    for switch in switches.list if switches else ():
        if switch.bus:
            (_pci_device(root, switch.bus) / "class").write_text("0x068000\n", encoding="utf-8")
    with_cpus = {node.id: node.cpus for node in description.host.numa}
    without = dict.fromkeys(cpu_numbers(description.host.numa_without_cpus), "")
    for node, cpus in {**without, **with_cpus}.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpulist").write_text(f"{cpus}\n", encoding="utf-8")


def _pci_device(root: Path, bus: str) -> Path:
    """Folder of one PCI device: sysfs writes four domain digits, in lower case, where they suffice."""
    domain, _, rest = bus.lower().partition(":")
    address = f"{domain[4:] if domain.startswith('0000') else domain}:{rest}"
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True, exist_ok=True)
    return folder
