"""Checks the NVIDIA driver, the GPUs that it shows, and those that the Node reports as unhealthy.

The format of /proc/driver/nvidia/version: NVIDIA/open-gpu-kernel-modules (nv-procfs.c).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning
from deviceplugin.machine.discovery import NodeSharing, left_out, resources
from deviceplugin.machine.readings import GpuReading, MachineReading
from deviceplugin.machine.topology import asymmetric_pairs
from deviceplugin.remediation.holders import holder_of
from deviceplugin.settings import RemediationSettings
from program.words import as_sentence, enumerated
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_REGISTER, NODE_UNHEALTHY
from proto.annotations.node_register import decode_register
from proto.annotations.unhealthy_since import decode_unhealthy, stamp
from proto.devices import UNKNOWN_NUMA
from proto.kubernetes.objects import Node, Pod

DRIVER = "NVIDIA driver"
FILES = "Driver files"
GPUS = "GPUs"
MIG = "MIG strategy"

_KERNEL_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_LIBRARY = re.compile(r"/libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)*)")

_MISMATCH = 18
_INSTALL = (
    "Install the NVIDIA driver. If it is installed, let this process see libnvidia-ml.so.1 (--driver-root, "
    "--nvml-library)."
)
_REMEDIES = {
    None: _INSTALL,
    12: _INSTALL,
    9: "Load the kernel module (modprobe nvidia); dmesg shows why it is not loaded.",
    28: "Check with lspci that the GPU is in the machine and bound to the nvidia module.",
    999: "Run this again in a new container. If it stays, read dmesg and reboot the node.",
}
"""Remedies by nvmlReturn_t."""
_COMPARE = "Compare with what nvidia-smi prints on the host."
_HANGS = "The driver hangs; waiting does not help. Look for Xid messages in dmesg, then reboot the node."
_GPU_LOST = "Look for Xid messages of this GPU in dmesg; reset it (nvidia-smi --gpu-reset) or reboot the node."


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAnswer:
    """The answers of NVML. Unknown versions are empty."""

    problem: str = ""
    """The reason why it cannot be used, as a sentence; empty if it answers."""
    code: int | None = None
    """The nvmlReturn_t of the problem; None if no library could be loaded or it did not answer in time."""
    timed_out: bool = False
    answered_version: str = ""
    library_version: str = ""
    module_version: str = ""
    """The version of the loaded kernel module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFilesFacts:
    """The files below the driver's root."""

    root: str
    version: str = ""
    problem: str = ""
    """The reason why containers cannot get the driver, as a clause; empty if they can."""


def module_version(text: str) -> str:
    """Reads the version from the text of /proc/driver/nvidia/version."""
    found = _KERNEL_MODULE.search(text)
    return found[1] if found else ""


def library_version(maps: str) -> str:
    """Reads the version of the NVML library from the files that a process has mapped (/proc/self/maps)."""
    found = _LIBRARY.search(maps)
    return found[1] if found else ""


def judge_driver(facts: DriverAnswer) -> Finding:
    if facts.timed_out:
        return problem(DRIVER, facts.problem, _HANGS)
    if not facts.problem:
        return ok(DRIVER, f"Version {facts.answered_version or facts.module_version or 'unknown'} answers.")
    if facts.code == _MISMATCH or _differ(facts):
        return _mismatch(facts)
    loaded = f" The kernel module {facts.module_version} is loaded." if facts.module_version else ""
    return problem(DRIVER, as_sentence(facts.problem) + loaded, _REMEDIES.get(facts.code, _COMPARE))


def judge_driver_files(files: DriverFilesFacts, running: str) -> Finding:
    """Checks the driver's files. `running` is the version of the driver that answers, empty if none does."""
    if files.problem:
        return problem(
            FILES,
            as_sentence(files.problem),
            "Install the driver there, or set driver_root to the folder that contains it.",
        )
    if running and running != files.version:
        return problem(
            FILES,
            f"The driver in the kernel is {running} and its libraries below {files.root} are {files.version}: "
            "no GPU is offered.",
            "Load the kernel module of these libraries (reboot the node).",
        )
    return ok(FILES, f"Version {files.version} is below {files.root}.")


def judge_gpus(machine: MachineReading, sharing: NodeSharing, resource_name: str) -> tuple[Finding, ...]:
    """Returns one finding for what is shared, and one for each problem or weakness of a GPU."""
    return (
        _shared(machine, sharing, resource_name),
        *_simulated(machine),
        *_ailing(machine),
        *(
            problem(GPUS, as_sentence(why), "Change the GPU or the setting as described.")
            for why in left_out(machine, sharing)
        ),
        _mig(machine, sharing),
        *_places(machine),
        *(
            warning(GPUS, as_sentence(pair.sentence), "Look for NVLink errors: nvidia-smi nvlink -e.")
            for pair in asymmetric_pairs(machine)
        ),
    )


def _shared(machine: MachineReading, sharing: NodeSharing, resource_name: str) -> Finding:
    found = {name: devices for name, devices in resources(machine, sharing, resource_name).items() if devices}
    if not found:
        return problem(
            GPUS,
            f"{_gpus(len(machine.gpus))} found, none can be shared.",
            "See the reasons below; if there is none, check --filter-devices.",
        )
    counts = [f"{len(devices)} as {name}" for name, devices in found.items()]
    if len(found) == 1 and len(next(iter(found.values()))) == len(machine.gpus):
        every = "" if len(machine.gpus) == 1 else f"all {len(machine.gpus)} "
        return ok(GPUS, f"{_gpus(len(machine.gpus))} found, {every}shared as {next(iter(found))}.")
    return ok(GPUS, f"{_gpus(len(machine.gpus))} found; shared: {enumerated(counts)}.")


def _simulated(machine: MachineReading) -> Iterator[Finding]:
    if machine.is_simulated:
        yield warning(
            GPUS,
            "They are simulated: none of them is real, and no program can use them.",
            "For real GPUs, install without simulation.machine and remove the node's label topogpu.io/simulated.",
        )


def _ailing(machine: MachineReading) -> Iterator[Finding]:
    problems = {f"GPU {gpu.index}: {gpu.problem}" for gpu in machine.gpus if gpu.problem}
    for sentence in (*sorted(problems), *(one for one in machine.problems if one not in problems)):
        yield problem(GPUS, as_sentence(f"{sentence}; it is advertised as unhealthy or not at all"), _GPU_LOST)


def _mig(machine: MachineReading, sharing: NodeSharing) -> Finding:
    enabled = [_named(gpu) for gpu in machine.gpus if gpu.mig_enabled]
    strategy = sharing.mig_strategy
    if strategy == "none" and enabled:
        return warning(
            MIG,
            f"MIG is on for {enumerated(enabled)}, and the strategy is none: a pod that gets such a GPU sees all its "
            "MIG devices.",
            "Set --mig-strategy to single or mixed, or turn MIG off (nvidia-smi -mig 0).",
        )
    if strategy != "none" and not enabled:
        return warning(
            MIG,
            f"The strategy is {strategy}, but no GPU of this machine has MIG on; they are shared whole.",
            "Set --mig-strategy to none, or turn MIG on (nvidia-smi -mig 1).",
        )
    return ok(MIG, f"The strategy {strategy} fits the GPUs.")


def _places(machine: MachineReading) -> Iterator[Finding]:
    lost = [_named(gpu) for gpu in machine.gpus if gpu.healthy and gpu.numa == UNKNOWN_NUMA]
    if lost:
        yield warning(
            "NUMA nodes",
            f"The NUMA node of {enumerated(lost)} is unknown, so pods that ask for GPUs of one NUMA node get none.",
            "Check --host-root. Many virtual machines do not report it; then there is nothing to do.",
        )


def _differ(facts: DriverAnswer) -> bool:
    known = facts.library_version and facts.module_version
    return bool(known) and facts.library_version != facts.module_version


def _mismatch(facts: DriverAnswer) -> Finding:
    library = f" {facts.library_version}" if facts.library_version else ""
    module = f" {facts.module_version}" if facts.module_version else ""
    return problem(
        DRIVER,
        f"The NVML library{library} and the loaded kernel module{module} are of different driver versions, as after an "
        "upgrade without a reboot; no GPU can be used.",
        "Reboot the node, or stop everything that uses the GPUs and reload the nvidia modules. In a container, restart "
        "it so that it gets the matching library.",
    )


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'' if count == 1 else 's'}"


def _named(gpu: GpuReading) -> str:
    return f"GPU {gpu.index}"


UNHEALTHY = "Unhealthy GPUs"
_REPAIR = "The Node's events have the reason (kubectl describe node); docs/health.md lists what brings a GPU back"


def judge_unhealthy(node: Node | None, pods: Collection[Pod], settings: RemediationSettings, resource: str) -> Finding:
    if node is None:
        return skipped(UNHEALTHY, "The Node could not be read.")
    try:
        ill = _ill(node.metadata.annotations)
    except AnnotationError as error:
        return problem(UNHEALTHY, f"{error}.", "Restart the daemon; it writes its annotations again.")
    if not ill:
        return ok(UNHEALTHY, "The Node has none.")
    holders = [holder for pod in pods if (holder := holder_of(pod, {}, resource)) is not None]
    having = sorted(holder.name for holder in holders if holder.gpus & ill.keys())
    named = enumerated(
        [name if at is None else f"{name} since {stamp(at)}" for name, at in sorted(ill.items())], most=16
    )
    if not having:
        return warning(UNHEALTHY, f"{named}; no pod has one of them.", f"{_REPAIR}.")
    todo = (
        "the daemon evicts these pods in time"
        if settings.evicts
        else "delete these pods to have them placed again, or have the daemon evict them (--remediation)"
    )
    return warning(UNHEALTHY, f"{named}; pods on them: {enumerated(having)}.", f"{_REPAIR}; {todo}.")


def _ill(annotations: Mapping[str, str]) -> Mapping[str, datetime | None]:
    """Returns since when, by UUID or place, if known. Raises AnnotationError."""
    registered = decode_register(annotations[NODE_REGISTER]) if NODE_REGISTER in annotations else ()
    since = decode_unhealthy(annotations[NODE_UNHEALTHY]) if NODE_UNHEALTHY in annotations else {}
    return {device.uuid: None for device in registered if not device.healthy} | dict(since)
