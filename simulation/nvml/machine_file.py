"""The flat text that the fake NVML reads, and a sysfs tree to go with it."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from simulation.machines.description import (
    FABRIC_STATES,
    LEVELS,
    P2P_STATUSES,
    DescribedGpu,
    FabricState,
    MachineDescription,
    cpu_numbers,
    gpu_uuid,
    mig_uuid,
)

MACHINE_FILE_VARIABLE = "TOPOGPU_FAKE_NVML_MACHINE"
"""Environment variable with the file that the fake library reads."""

XID = 8
"""nvmlEventTypeXidCriticalError."""
DOUBLE_BIT_ECC = 2
"""nvmlEventTypeDoubleBitEccError."""
WHOLE_GPU = 0xFFFFFFFF
"""Instance id of an event that concerns no single MIG instance."""

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
    "ALREADY_INITIALIZED": 5,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "INSUFFICIENT_POWER": 8,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "LIBRARY_NOT_FOUND": 12,
    "FUNCTION_NOT_FOUND": 13,
    "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "VGPU_ECC_NOT_SUPPORTED": 22,
    "INSUFFICIENT_RESOURCES": 23,
    "FREQ_NOT_SUPPORTED": 24,
    "ARGUMENT_VERSION_MISMATCH": 25,
    "DEPRECATED": 26,
    "NOT_READY": 27,
    "GPU_NOT_FOUND": 28,
    "INVALID_STATE": 29,
    "RESET_TYPE_NOT_SUPPORTED": 30,
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
class CallHangs:
    """`call` on one GPU, `*` for every call, answers only after `seconds`, or as soon as the fault is taken back."""

    gpu: int
    call: str
    seconds: float = 3600.0
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
    """The driver does not report what the NVLinks of one GPU, or of all, lead to; they work as before."""

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
class MachineEvent:
    """An event for programs that registered for its type before; it is delivered once. Instances are those of a MIG
    GPU.
    """

    gpu: int
    data: int
    type: int = XID
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTypesAre:
    """The driver reports these types of events of a GPU (a mask of nvmlEventType...) instead of the usual ones."""

    types: int
    gpu: int = EVERY_GPU
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryActionIs:
    """The driver requests this action (nvmlDeviceGpuRecoveryAction_t): 1 a GPU reset, 2 a reboot, ..."""

    gpu: int
    action: int
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRemapped:
    """A faulty memory row was remapped: the reset is still due, or it failed. GPUs from Ampere on."""

    gpu: int
    pending: bool = False
    failed: bool = False
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesPending:
    """Memory pages wait for their retirement. GPUs before Ampere."""

    gpu: int
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UncorrectedErrors:
    """The number of uncorrected memory errors since the driver was loaded."""

    gpu: int
    count: int
    at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Everything listed before for one GPU, or for all, is over."""

    gpu: int = EVERY_GPU
    at_seconds: float = 0.0


Fault = (
    CallFails
    | CallHangs
    | LinkState
    | LinkTypesUnknown
    | FabricIs
    | MachineEvent
    | EventTypesAre
    | RecoveryActionIs
    | RowsRemapped
    | PagesPending
    | UncorrectedErrors
    | Cleared
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """The activity of one GPU; a GPU without one idles."""

    gpu: int
    busy_percent: int = 0
    memory_busy_percent: int = 0
    celsius: int = 30
    milliwatts: int = 60_000
    sm_mhz: int = 210
    memory_mhz: int = 1215
    encoder_percent: int = 0
    decoder_percent: int = 0
    clock_reasons: int = 1
    """nvmlClocksEventReason bits; 1 is an idle GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process on one GPU; its pid is the host's."""

    gpu: int
    pid: int
    used_mib: int
    sm_percent: int = 0
    kind: Literal["compute", "graphics", "mps"] = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """The answer of nvmlDeviceGetFieldValues for a field (NVML_FI_DEV_*) of one GPU."""

    gpu: int
    field: int
    value: int


Usage = GpuLoad | Process | Counter


def lost_gpu(gpu: int, at_seconds: float = 0.0) -> CallFails:
    """The GPU falls off the bus."""
    return CallFails(gpu=gpu, call="*", error="GPU_IS_LOST", at_seconds=at_seconds)


def error_number(name: str) -> int:
    """Returns nvmlReturn_t of a name, with or without NVML_ERROR_. Raises UnknownErrorName."""
    number = ERRORS.get(name.removeprefix("NVML_ERROR_"))
    if number is None:
        raise UnknownErrorName(f"{name!r} is not an NVML error; known are {', '.join(ERRORS)}")
    return number


def write_machine_file(
    description: MachineDescription,
    path: Path,
    instance: str,
    faults: Sequence[Fault] = (),
    usage: Sequence[Usage] = (),
) -> None:
    """Write it whole or not at all, so that a reader never sees half; `instance` makes the UUIDs this node's own."""
    replace_machine_file(path, render_machine_file(description, instance, faults, usage))


def replace_machine_file(path: Path, text: str) -> None:
    """Write the text whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def render_machine_file(
    description: MachineDescription, instance: str, faults: Sequence[Fault] = (), usage: Sequence[Usage] = ()
) -> str:
    """Returns the flat text of one machine. Raises UnknownErrorName."""
    used = [*(GpuLoad(gpu=index) for index in range(len(description.gpus))), *usage]
    lines = [*_machine_lines(description, instance), *map(_usage_line, used), *map(fault_line, faults)]
    return "\n".join([*lines, "end", ""])


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
        yield from _mig_lines(machine, index, gpu, instance)
        yield from _link_lines(machine, index)
        for other in range(index + 1, len(machine.gpus)):
            yield f"level {index} {other} {10 * LEVELS.index(machine.level(index, other))}"


def _gpu_line(machine: MachineDescription, index: int, gpu: DescribedGpu, instance: str) -> str:
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


def _place_lines(machine: MachineDescription, index: int, gpu: DescribedGpu) -> Iterator[str]:
    """Returns affinity masks; a GPU with an unknown node is equally near to every CPU."""
    near = [node for node in machine.host.numa if gpu.numa in (-1, node.id)]
    yield f"nodes {index} {','.join(str(node.id) for node in near)}"
    yield f"cpus {index} {','.join(node.cpus for node in near)}"


def _mig_lines(machine: MachineDescription, index: int, gpu: DescribedGpu, instance: str) -> Iterator[str]:
    for mig in gpu.mig_devices:
        gpu_slices, compute_slices = mig.slices
        words = (mig_uuid(machine.id, index, mig, instance), mig.profile, mig.memory_mib, mig.gi, mig.ci)
        yield f"mig {index} {' '.join(map(str, words))} {gpu_slices} {compute_slices}"


def _link_lines(machine: MachineDescription, index: int) -> Iterator[str]:
    for end in machine.links(index):
        remote = _REMOTE_SWITCH if end.peer is None else _REMOTE_GPU
        yield f"link {index} {remote} {end.bus or _HIDDEN_BUS}"
    fabric = machine.fabric
    if fabric is not None:
        cluster = "0" * 32 if fabric.cluster == "zero" else fabric.cluster.replace("-", "")
        state = FABRIC_STATES.index(fabric.state)
        yield f"fabric {index} {state} {error_number(fabric.status)} {fabric.clique} {cluster}"


def _usage_line(usage: Usage) -> str:
    match usage:
        case GpuLoad(gpu=gpu):
            words = (usage.busy_percent, usage.memory_busy_percent, usage.celsius, usage.milliwatts, usage.sm_mhz)
            more = (usage.memory_mhz, usage.encoder_percent, usage.decoder_percent, usage.clock_reasons)
            return f"usage {gpu} {' '.join(map(str, (*words, *more)))}"
        case Counter(gpu=gpu):
            return f"counter {gpu} {usage.field} {usage.value}"
        case Process(gpu=gpu, kind=kind):
            process_list = ("compute", "graphics", "mps").index(kind)
            return f"process {gpu} {process_list} {usage.pid} {usage.used_mib} {usage.sm_percent}"
    assert_never(usage)


def fault_line(fault: Fault) -> str:
    """Returns the line of one fault."""
    return f"fault {fault.at_seconds:.3f} {fault.gpu} {_fault_words(fault)}"


def _fault_words(fault: Fault) -> str:  # noqa: PLR0912 - one branch a kind
    match fault:
        case CallFails(call=call, error=error):
            words = f"call {call} {error_number(error)} 0"
        case CallHangs(call=call, seconds=seconds):
            words = f"hang {call} {round(1000 * seconds)} 0"
        case LinkState(link=link, up=up):
            words = f"link - {link} {int(up)}"
        case LinkTypesUnknown():
            words = "types - 0 0"
        case FabricIs(state=state, status=status):
            words = f"fabric - {FABRIC_STATES.index(state)} {error_number(status)}"
        case MachineEvent(type=kind, data=data):
            words = f"event {fault.gpu_instance}/{fault.compute_instance} {kind} {data}"
        case EventTypesAre(types=types):
            words = f"event-types - {types} 0"
        case RecoveryActionIs(action=action):
            words = f"recovery - {action} 0"
        case RowsRemapped(pending=pending, failed=failed):
            words = f"rows - {int(pending)} {int(failed)}"
        case PagesPending():
            words = "pages - 1 0"
        case UncorrectedErrors(count=count):
            words = f"ecc - {count} 0"
        case Cleared():
            words = "clear - 0 0"
        case _:
            assert_never(fault)
    return words


def write_sysfs(description: MachineDescription, root: Path) -> None:
    """Writes the part of /sys that discovery reads: GPUs' numa_node, classes of GPUs and switches, nodes' cpulists."""
    for gpu in description.gpus:
        device = _pci_device(root, gpu.bus)
        (device / "numa_node").write_text(f"{gpu.numa}\n", encoding="utf-8")
        (device / "class").write_text(f"{gpu.pci_class:#08x}\n", encoding="utf-8")
        (device / "vendor").write_text("0x10de\n", encoding="utf-8")
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
    """Returns folder of one PCI device: sysfs writes four domain digits, in lower case, where they suffice."""
    domain, _, rest = bus.lower().partition(":")
    address = f"{domain[4:] if domain.startswith('0000') else domain}:{rest}"
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True, exist_ok=True)
    return folder
