"""The driver's events, from a thread of their own that sits in NVML's wait."""

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deviceplugin.health.step import DoubleBitError, HealthEvent, Hint, Monitored, XidSeen
from deviceplugin.nvml.calls import NOT_SUPPORTED, TIMEOUT, CallFailed, NvmlCalls, as_text
from deviceplugin.nvml.lanes import Hangs, Lanes
from proto.devices import DeviceUUID

log = logging.getLogger(__name__)

# nvmlEventType* of nvml.h.
_DOUBLE_BIT, _XID = 0x2, 0x8
_RETIREMENT, _RETIREMENT_FAILURE, _FATAL_POISON, _UNAVAILABLE, _RECOVERY_ACTION = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_WANTED = _DOUBLE_BIT | _XID | _RETIREMENT | _RETIREMENT_FAILURE | _FATAL_POISON | _UNAVAILABLE | _RECOVERY_ACTION

_EVERY_INSTANCE = 0xFFFFFFFF
"""GPU or compute instance id of an event that no MIG instance is named for."""

_WAIT_MS = 500
"""One wait in the driver: how long `stop` may have to wait for the thread."""
_LEAVE_SECONDS = 1.0
_BREATH_SECONDS = 0.01
"""Between two waits, so that a driver which answers at once, for whatever reason, costs little."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class NvmlEvents:
    """Tells what the driver reports of the watched GPUs. A driver that hangs keeps nobody from leaving.

    Stop it before the library is closed.
    """

    def __init__(self) -> None:
        self._tell: Callable[[HealthEvent], object] = lambda _: None
        self._wanted: tuple[NvmlCalls, frozenset[DeviceUUID]] | None = None
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause, self._problem = _FIRST_PAUSE_SECONDS, ""

    def start(self, tell: Callable[[HealthEvent], object]) -> None:
        """`tell` is called on the thread."""
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        self._thread.start()

    def watch(self, calls: NvmlCalls, gpus: frozenset[DeviceUUID]) -> None:
        """Register these GPUs, and no others, with a new event set; told as Monitored."""
        self._wanted = (calls, gpus)
        self._wake.set()

    def stop(self) -> None:
        """Nothing is told after this. Waits a moment for the thread, but not for a driver that hangs."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._stopped.is_set():
                return
            if self._wanted is None:
                self._wake.wait()
                continue
            calls, gpus = self._wanted
            try:
                with _EventSet(calls, gpus) as events:
                    events.wait(0, self._say)  # a set that cannot be waited on is none
                    self._say(events.monitored())
                    self._listen(events)
            except CallFailed as error:
                self._failed(error, gpus)

    def _listen(self, events: "_EventSet") -> None:
        """Until there is something else to watch. Raises CallFailed when the set can no longer be waited on."""
        while not self._wake.wait(_BREATH_SECONDS):
            events.wait(_WAIT_MS, self._say)
            self._pause, self._problem = _FIRST_PAUSE_SECONDS, ""

    def _failed(self, error: CallFailed, gpus: frozenset[DeviceUUID]) -> None:
        """A set that failed after it had worked is made anew at once; monitoring is lost when that fails too."""
        if str(error) != self._problem:
            self._problem = str(error)
            log.warning("the NVIDIA driver gives no events: %s; trying again", error)
        if self._pause > _FIRST_PAUSE_SECONDS:
            self._say(Monitored(refused=dict.fromkeys(gpus, str(error))))
        self._wake.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _say(self, event: HealthEvent) -> None:
        if not self._stopped.is_set():
            self._tell(event)


class _EventSet:
    """One event set and the GPUs registered with it. Raises CallFailed when there can be none."""

    def __init__(self, calls: NvmlCalls, gpus: frozenset[DeviceUUID]) -> None:
        self._calls = calls
        self._set: object = calls.ask("nvmlEventSetCreate")
        self._gpu_of_handle: dict[int, DeviceUUID] = {}
        self._refused: dict[DeviceUUID, str] = {}
        self._lanes = Lanes()
        self._hangs = False
        registered = self._lanes.ask("registration", {uuid: partial(self._register, uuid) for uuid in sorted(gpus)})
        for uuid, outcome in registered.items():
            if isinstance(outcome, int):
                self._gpu_of_handle[outcome] = uuid
            else:
                self._refused[uuid] = str(outcome)
                self._hangs = self._hangs or isinstance(outcome, Hangs)

    def __enter__(self) -> "_EventSet":
        return self

    def __exit__(self, *_: object) -> None:
        self._lanes.close()
        if self._hangs:
            return  # a registration that comes late must not meet a set that is freed
        try:
            self._calls.ask("nvmlEventSetFree", self._set)
        except CallFailed as error:
            log.warning("an NVML event set could not be freed: %s", error)

    def _register(self, uuid: DeviceUUID) -> int | CallFailed:
        """The address of the GPU's handle, or why there are no events of it."""
        try:
            handle = self._calls.ask("nvmlDeviceGetHandleByUUID", uuid)
            types = _WANTED & self._calls.ask("nvmlDeviceGetSupportedEventTypes", handle)
            if not types:
                raise CallFailed("nvmlDeviceGetSupportedEventTypes", NOT_SUPPORTED, "none of the wanted ones")
            self._calls.ask("nvmlDeviceRegisterEvents", handle, types, self._set)
        except CallFailed as error:
            return error
        return _address(handle)

    def monitored(self) -> Monitored:
        refused: Mapping[DeviceUUID, str] = dict(self._refused)
        return Monitored(gpus=frozenset(self._gpu_of_handle.values()), refused=refused)

    def wait(self, timeout_ms: int, tell: Callable[[HealthEvent], object]) -> None:
        """One wait; no event in time is ordinary. Raises CallFailed."""
        try:
            event = self._calls.ask("nvmlEventSetWait_v2", self._set, timeout_ms)
        except CallFailed as error:
            if error.code != TIMEOUT:
                raise
        else:
            tell(self._translated(event))

    def _translated(self, event: Any) -> HealthEvent:
        gpu = self._gpu(event.device)
        if event.eventType == _XID:
            return XidSeen(
                gpu=gpu,
                xid=event.eventData,
                gpu_instance=_instance(event.gpuInstanceId),
                compute_instance=_instance(event.computeInstanceId),
            )
        return DoubleBitError(gpu=gpu) if event.eventType == _DOUBLE_BIT else Hint(gpu=gpu)

    def _gpu(self, handle: Any) -> DeviceUUID | None:
        """By the handle it was registered with: a GPU off the bus no longer tells its UUID."""
        known = self._gpu_of_handle.get(_address(handle))
        if known is not None:
            return known
        try:
            return DeviceUUID(as_text(self._calls.ask("nvmlDeviceGetUUID", handle)))
        except CallFailed:
            return None


def _instance(number: int) -> int | None:
    return None if number == _EVERY_INSTANCE else number


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
