"""Reads the driver's events on a separate thread that waits in NVML."""

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deviceplugin.health.step import DoubleBitError, HealthEvent, Hint, Monitored, XidSeen
from deviceplugin.nvml.calls import NOT_SUPPORTED, TIMEOUT, CallFailed, NvmlCalls
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
"""Between two rounds of waits, so that a driver which answers at once, for whatever reason, costs little."""
_MOST_IN_A_ROUND = 16
"""Events: more than programs of tenants cause, so that those of one GPU do not hold up another's."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class NvmlEvents:
    """Reports the driver's events of the watched GPUs. A driver that hangs does not keep the process from ending.

    Stop it before the library is closed.
    """

    def __init__(self) -> None:
        self._notify: Callable[[HealthEvent], object] = lambda _: None
        self._wanted: tuple[NvmlCalls, frozenset[DeviceUUID]] | None = None
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lanes = Lanes()
        """Shared by all event sets: a registration that hangs is not begun a second time."""
        self._pause, self._problem = _FIRST_PAUSE_SECONDS, ""

    def start(self, notify: Callable[[HealthEvent], object]) -> None:
        """`notify` is called on the thread."""
        self._notify = notify
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        self._thread.start()

    def watch(self, calls: NvmlCalls, gpus: frozenset[DeviceUUID]) -> None:
        """Registers these GPUs, and no others, with a new event set; the result is the event Monitored."""
        self._wanted = (calls, gpus)
        self._wake.set()

    def stop(self) -> None:
        """Stops; no event follows. It waits briefly for the thread, but not for a driver that hangs."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._stopped.is_set():
                self._lanes.close()
                return
            if self._wanted is None:
                self._wake.wait()
                continue
            calls, gpus = self._wanted
            try:
                with _EventSet(calls, gpus, self._lanes) as events:
                    events.wait(0, self._say)  # a set that cannot be waited on is none
                    self._say(events.monitored())
                    self._listen(events)
            except CallFailed as error:
                self._failed(error, gpus)

    def _listen(self, events: "_EventSet") -> None:
        """Waits until there is something else to watch. Raises CallFailed when the set can no longer be waited on."""
        while not self._wake.wait(_BREATH_SECONDS):
            if events.wait(_WAIT_MS, self._say):
                for _ in range(_MOST_IN_A_ROUND - 1):
                    if not events.wait(0, self._say):
                        break
            self._pause, self._problem = _FIRST_PAUSE_SECONDS, ""

    def _failed(self, error: CallFailed, gpus: frozenset[DeviceUUID]) -> None:
        """Replaces at once a set that failed after it had worked; monitoring is lost when that fails too."""
        if str(error) != self._problem:
            self._problem = str(error)
            log.warning("the NVIDIA driver gives no events: %s; trying again", error)
        if self._pause > _FIRST_PAUSE_SECONDS:
            self._say(Monitored(refused=dict.fromkeys(gpus, str(error))))
        self._wake.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _say(self, event: HealthEvent) -> None:
        if not self._stopped.is_set():
            self._notify(event)


@dataclass(frozen=True, slots=True)
class _Registration:
    """`outcome` is the address of the GPU's handle, or why there are no events of it."""

    events: "_EventSet"
    outcome: int | CallFailed


class _EventSet:
    """One event set and the GPUs registered with it. Raises CallFailed when there can be none."""

    def __init__(self, calls: NvmlCalls, gpus: frozenset[DeviceUUID], lanes: Lanes) -> None:
        self._calls = calls
        self._set: object = calls.ask("nvmlEventSetCreate")
        self._gpu_of_handle: dict[int, DeviceUUID] = {}
        self._divided: set[int] = set()
        """Addresses of the handles of GPUs with MIG on. Some drivers name instance 0 of other GPUs."""
        self._refused: dict[DeviceUUID, str] = {}
        self._lock = threading.Lock()
        self._in_use = 1
        """Counts users that hold the set open and registrations under way: a set that the driver works on is not freed.

        """
        self._is_closed = False
        answers = lanes.ask("registration", {uuid: partial(self._register, uuid) for uuid in sorted(gpus)})
        for uuid, answer in answers.items():
            if isinstance(answer, Hangs):
                self._refused[uuid] = str(answer)
            elif answer.events is not self:
                self._refused[uuid] = "the driver answered too late"
            elif isinstance(answer.outcome, int):
                self._gpu_of_handle[answer.outcome] = uuid
            else:
                self._refused[uuid] = str(answer.outcome)

    def __enter__(self) -> "_EventSet":
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._in_use -= 1
            if self._in_use:
                return
        try:
            self._calls.ask("nvmlEventSetFree", self._set)
        except CallFailed as error:
            log.warning("an NVML event set could not be freed: %s", error)

    def _register(self, uuid: DeviceUUID) -> _Registration:
        try:
            return _Registration(self, self._registered(uuid))
        except CallFailed as error:
            return _Registration(self, error)

    def _registered(self, uuid: DeviceUUID) -> int:
        """Raises CallFailed."""
        handle = self._calls.ask("nvmlDeviceGetHandleByUUID", uuid)
        types = _WANTED & self._calls.ask("nvmlDeviceGetSupportedEventTypes", handle)
        if not types:
            raise CallFailed("nvmlDeviceGetSupportedEventTypes", NOT_SUPPORTED, "none of the wanted ones")
        with self._lock:
            if self._is_closed:
                raise CallFailed("nvmlDeviceRegisterEvents", TIMEOUT, "the event set is closed")
            self._in_use += 1
        try:
            self._calls.ask("nvmlDeviceRegisterEvents", handle, types, self._set)
        finally:
            self._leave()
        mode = self._calls.ask_or(None, "nvmlDeviceGetMigMode", handle)
        if mode is not None and mode[0] == 1:
            self._divided.add(_address(handle))
        return _address(handle)

    def monitored(self) -> Monitored:
        refused: Mapping[DeviceUUID, str] = dict(self._refused)
        return Monitored(gpus=frozenset(self._gpu_of_handle.values()), refused=refused)

    def wait(self, timeout_ms: int, notify: Callable[[HealthEvent], object]) -> bool:
        """Waits once, and returns whether it brought an event; none in time is ordinary. Raises CallFailed."""
        try:
            event = self._calls.ask("nvmlEventSetWait_v2", self._set, timeout_ms)
        except CallFailed as error:
            if error.code != TIMEOUT:
                raise
            return False
        notify(self._translated(event))
        return True

    def _translated(self, event: Any) -> HealthEvent:
        gpu = self._gpu(event.device)
        if event.eventType == _XID:
            divided = _address(event.device) in self._divided
            return XidSeen(
                gpu=gpu,
                xid=event.eventData,
                gpu_instance=_instance(event.gpuInstanceId) if divided else None,
                compute_instance=_instance(event.computeInstanceId) if divided else None,
            )
        return DoubleBitError(gpu=gpu) if event.eventType == _DOUBLE_BIT else Hint(gpu=gpu)

    def _gpu(self, handle: Any) -> DeviceUUID | None:
        """Finds the GPU by the handle with which it was registered: a GPU off the bus no longer has its UUID."""
        known = self._gpu_of_handle.get(_address(handle))
        if known is not None:
            return known
        try:
            return DeviceUUID(self._calls.ask("nvmlDeviceGetUUID", handle))
        except CallFailed:
            return None


def _instance(number: int) -> int | None:
    return None if number == _EVERY_INSTANCE else number


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
