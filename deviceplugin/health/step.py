"""Decides whether GPUs are healthy: events and polled signals enter, one sentence for each unhealthy GPU leaves; the
time is an argument.

Ignored XIDs and the two switches as in NVIDIA/k8s-device-plugin internal/rm/health.go; what XIDs mean from NVIDIA's XID
catalogue; recovery actions are nvmlDeviceGpuRecoveryAction_t of nvml.h.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from proto.devices import DeviceUUID

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Usually the fault of the program that runs, not of the GPU."""

_XID_MEANINGS = {
    48: "uncorrectable memory error",
    63: "memory row remapping or page retirement",
    64: "memory row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GPU firmware does not answer",
    120: "GPU firmware error",
    140: "unrecovered memory error",
    154: "recovery action changed",
}

_RECOVERY = {
    1: "a GPU reset",
    2: "a reboot",
    3: "peer-to-peer traffic drained",
    4: "a drain and reset",
    5: "its IMEX domain recovered",
    6: "a bus reset",
    7: "a system reboot",
}


def recovery_problem(action: int | None) -> str:
    """Returns what the driver's recovery action (field 230) requests; empty if nothing or unknown."""
    return f"the driver asks for {_RECOVERY.get(action, f'recovery action {action}')}" if action else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """The faults that make a GPU unhealthy, and the time without faults until it is healthy again."""

    checks: tuple[str, ...] = ()
    """Differences from the usual faults, in lower case. An XID, or `all` for every XID, counts; with a hyphen before
    it an XID, `xids`, `fabric` or `all` does not. What is named without a hyphen counts in any case.
    """
    recovery_seconds: float = 60.0
    recovery_polls: int = 2
    poll_seconds: float = 5.0

    @property
    def signals(self) -> bool:
        """Returns whether ECC errors, polled signals and silence make a GPU unhealthy; they always delay its return."""
        return "-all" not in self.checks or "all" in self.checks

    @property
    def fabric(self) -> bool:
        """Returns whether a GPU that is not registered with its NVLink fabric is unhealthy."""
        return "-fabric" not in self.checks

    @property
    def watches(self) -> bool:
        """Returns whether anything can make a GPU unhealthy."""
        return self._xids or self.signals or any(check.isdecimal() for check in self.checks)

    def is_fatal(self, xid: int) -> bool:
        if "all" in self.checks or str(xid) in self.checks:
            return True
        return self._xids and str(-xid) not in self.checks and xid not in APPLICATION_XIDS

    @property
    def _xids(self) -> bool:
        """Returns whether XIDs count that are not named."""
        return not {"-all", "-xids"}.intersection(self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSeen:
    """`gpu` is None when the driver did not name it: the poll that follows shows the GPU.

    The instances are those of a MIG GPU where the driver narrows it down; the GPU counts as a whole all the same.
    """

    gpu: DeviceUUID | None
    xid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleBitError:
    """An uncorrectable memory error."""

    gpu: DeviceUUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """The driver reports a change; the poll that follows shows which."""

    gpu: DeviceUUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """One poll of one GPU. None and False also stand for a signal that this GPU or driver does not have."""

    recovery_action: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    pages_pending: bool = False
    """Page retirement waits for a reset; GPUs before Ampere."""
    uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    fabric_broken: bool = False
    """The GPU is not registered with its NVLink fabric, as for a while after boot: CUDA fails on it."""
    fabric_unhealthy: bool = False
    """Registered, and the fabric calls it unhealthy."""
    unread: str = ""
    """A signal that is there and could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    gpu: DeviceUUID
    signals: Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLost:
    """The GPU does not answer. Unless that is `certain` it counts when the next poll finds the same."""

    gpu: DeviceUUID
    problem: str
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitored:
    """A new event set: the GPUs registered with it, and why others could not be (all, when monitoring is lost)."""

    gpus: frozenset[DeviceUUID] = frozenset()
    refused: Mapping[DeviceUUID, str] = field(default_factory=dict)


HealthEvent = XidSeen | DoubleBitError | Hint | Polled | GpuLost | Monitored


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """One GPU. While it has a `problem`, the other fields are the progress of its return."""

    problem: str = ""
    standing: bool = False
    """The last poll still found the problem."""
    well_since: float | None = None
    """Time of the first good poll after the last bad sign."""
    good_polls: int = 0
    registered: bool = False
    """True if a registration for events was tried since `well_since`; a reset ends a registration."""
    uncorrected: int | None = None
    doubted: bool = False
    """The last poll was not answered, and that may have been chance."""


_WELL = GpuHealth()


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthState:
    gpus: Mapping[DeviceUUID, GpuHealth] = field(default_factory=dict)
    unmonitored: Mapping[DeviceUUID, str] = field(default_factory=dict)
    """GPUs that no events are heard of, and why. They are polled, and not unhealthy for that."""


def problems(state: HealthState) -> Mapping[DeviceUUID, str]:
    """Returns why each unhealthy GPU is unhealthy."""
    return {uuid: gpu.problem for uuid, gpu in state.gpus.items() if gpu.problem}


def doubted(state: HealthState) -> bool:
    """Returns whether a GPU should be polled again soon."""
    return any(gpu.doubted for gpu in state.gpus.values())


def awaiting_events(state: HealthState) -> frozenset[DeviceUUID]:
    """Returns GPUs that answer again and must be registered again before they are healthy."""
    return frozenset(
        uuid for uuid, gpu in state.gpus.items() if gpu.problem and gpu.good_polls > 0 and not gpu.registered
    )


def step(state: HealthState, event: HealthEvent, now_seconds: float, settings: HealthSettings) -> HealthState:
    """Returns the state after `event`. An event changes the GPU it names and no other."""
    if isinstance(event, Monitored):
        return _monitored(state, event)
    if event.gpu is None:
        return state
    before = state.gpus.get(event.gpu, _WELL)
    after = _after(before, event, now_seconds, settings)
    return state if after == before else replace(state, gpus={**state.gpus, event.gpu: after})


def _monitored(state: HealthState, event: Monitored) -> HealthState:
    tried = {*event.gpus, *event.refused}
    gpus = {
        uuid: replace(gpu, registered=True) if uuid in tried and gpu.well_since is not None else gpu
        for uuid, gpu in state.gpus.items()
    }
    return HealthState(gpus=gpus, unmonitored=event.refused)


def _after(
    gpu: GpuHealth,
    event: XidSeen | DoubleBitError | Hint | Polled | GpuLost,
    now_seconds: float,
    settings: HealthSettings,
) -> GpuHealth:
    match event:
        case Hint():
            return gpu
        case XidSeen(xid=xid):
            return _incident(gpu, _xid_problem(event)) if settings.is_fatal(xid) else gpu
        case DoubleBitError():
            return _sign(gpu, _incident(gpu, "the driver reported an uncorrectable memory error"), settings)
        case GpuLost(certain=False) if not gpu.problem and not gpu.doubted:
            return replace(gpu, doubted=True)
        case GpuLost(problem=problem):
            return _sign(gpu, _unwell(gpu, f"it does not answer: {problem}", standing=True), settings)
        case Polled(signals=signals):
            return _polled(gpu, signals, now_seconds, settings)


def _xid_problem(event: XidSeen) -> str:
    meaning = f" ({_XID_MEANINGS[event.xid]})" if event.xid in _XID_MEANINGS else ""
    instances = (("GPU", event.gpu_instance), ("compute", event.compute_instance))
    where = ", ".join(f"{kind} instance {number}" for kind, number in instances if number is not None)
    return f"the driver reported XID {event.xid}{meaning}{f' in {where}' if where else ''}"


def _incident(gpu: GpuHealth, problem: str) -> GpuHealth:
    """Adds what happened once. A lasting problem counts more."""
    return _unwell(gpu, gpu.problem if gpu.standing else problem, standing=gpu.standing)


def _unwell(gpu: GpuHealth, problem: str, *, standing: bool) -> GpuHealth:
    return replace(
        gpu, problem=problem, standing=standing, well_since=None, good_polls=0, registered=False, doubted=False
    )


def _sign(before: GpuHealth, after: GpuHealth, settings: HealthSettings) -> GpuHealth:
    """Applies what was read. Without `signals` that only keeps an unhealthy GPU from returning."""
    return after if settings.signals or before.problem else before


def _polled(gpu: GpuHealth, signals: Signals, now_seconds: float, settings: HealthSettings) -> GpuHealth:
    errors = _new_errors(gpu, signals)
    uncorrected = gpu.uncorrected if signals.uncorrected is None else signals.uncorrected
    gpu = replace(gpu, uncorrected=uncorrected, doubted=False)
    standing = _standing_problem(signals, settings)
    if standing:
        return _sign(gpu, _unwell(gpu, standing, standing=True), settings)
    if errors:
        return _sign(gpu, _unwell(gpu, f"uncorrected memory errors: {errors} new", standing=False), settings)
    if not gpu.problem:
        return gpu
    if signals.unread:
        return _unwell(gpu, gpu.problem, standing=False)
    return _better(gpu, now_seconds, settings)


def _new_errors(gpu: GpuHealth, signals: Signals) -> int:
    """Returns the rise since the last poll; the first poll only counts, and a reset starts again from zero."""
    if signals.uncorrected is None or gpu.uncorrected is None:
        return 0
    return max(0, signals.uncorrected - gpu.uncorrected)


FABRIC_PROBLEM = "it is not registered with the NVLink fabric, and CUDA fails on it until it is (error 802)"


def _standing_problem(signals: Signals, settings: HealthSettings) -> str:
    if signals.remap_failed:
        return "remapping a faulty memory row failed; the GPU needs replacing"
    action = recovery_problem(signals.recovery_action)
    if action:
        return action
    if signals.remap_pending:
        return "a remapped memory row waits for a GPU reset"
    if signals.pages_pending:
        return "a retired memory page waits for a GPU reset"
    if signals.fabric_unhealthy:
        return "the NVLink fabric calls it unhealthy"
    return FABRIC_PROBLEM if signals.fabric_broken and settings.fabric else ""


def _better(gpu: GpuHealth, now_seconds: float, settings: HealthSettings) -> GpuHealth:
    """Counts one more good poll; healthy after enough time and polls without a fault, and a new registration."""
    well_since = now_seconds if gpu.well_since is None else gpu.well_since
    good_polls = min(gpu.good_polls + 1, settings.recovery_polls)
    held = now_seconds - well_since >= settings.recovery_seconds
    if held and good_polls >= settings.recovery_polls and gpu.registered:
        return GpuHealth(uncorrected=gpu.uncorrected)
    return replace(gpu, standing=False, well_since=well_since, good_polls=good_polls)
