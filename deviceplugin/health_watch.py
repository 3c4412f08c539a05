"""Watches the health of this node's GPUs: the driver's events at once, every GPU's signals every few seconds."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from deviceplugin.health.step import (
    DoubleBitError,
    GpuLost,
    HealthEvent,
    HealthSettings,
    HealthState,
    Hint,
    Monitored,
    Polled,
    XidSeen,
    awaiting_events,
    doubted,
    problems,
    step,
)
from deviceplugin.nvml.calls import NvmlCalls
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.signals import fallen_off, poll_health
from proto.devices import DeviceUUID

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.5
"""Seconds between two checks for GPUs that vanished without an event: they must be known within two seconds."""
_DOUBT_SECONDS = 1.0
"""Seconds to the next poll after one without an answer, perhaps by chance."""
_CLOSEST_POLLS_SECONDS = 0.25
"""The fewest seconds between two polls, because a GPU may report one XID after the other."""

_KINDS = {XidSeen: "xid", DoubleBitError: "double_bit_error", Hint: "hint", Monitored: "registration"}
"""The kinds of the driver's events, as metrics count them."""

_XID_QUIET_SECONDS = 60.0
"""The same XID of a GPU is logged once in this time: programs of tenants cause some at will. The metric counts all."""

_REGISTER_SECONDS = 60.0
"""Seconds between two tries to register GPUs without events."""

T = TypeVar("T")


class OwnerThread(Protocol):
    """Runs blocking functions on the one thread that may call NVML."""

    async def call(self, function: Callable[[], T]) -> T: ...


class Events(Protocol):
    """The driver's events; `deviceplugin.nvml.events.NvmlEvents`."""

    def start(self, notify: Callable[[HealthEvent], object]) -> None: ...
    def watch(self, calls: NvmlCalls, gpus: frozenset[DeviceUUID]) -> None: ...
    def stop(self) -> None: ...


class HealthWatch:
    """`open_nvml` runs on `thread` and raises NvmlUnavailable; `changed` gets the problems after they have changed.

    `count` is called with the kind of each event: xid, double_bit_error, hint, registration, unhealthy or recovered. On
    a GPU's return the caller must read its links again before it offers the GPU: a reset may have left fewer.
    """

    def __init__(
        self,
        thread: OwnerThread,
        open_nvml: Callable[[], NvmlCalls],
        events: Events,
        changed: Callable[[Mapping[DeviceUUID, str]], None],
        settings: HealthSettings,
        *,
        count: Callable[[str], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._thread = thread
        self._open_nvml = open_nvml
        self._events = events
        self._changed = changed
        self._settings = settings
        self._count = count
        self._poll_seconds = settings.poll_seconds
        self._now = now
        self._state = HealthState()
        self._gpus: frozenset[DeviceUUID] = frozenset()
        self._registered: tuple[NvmlCalls, frozenset[DeviceUUID]] | None = None
        self._registered_at = 0.0
        self._logged: dict[tuple[DeviceUUID | None, int], float] = {}
        self._poll_due = asyncio.Event()
        self._xids: dict[DeviceUUID, int] = {}
        self._listened: frozenset[DeviceUUID] = frozenset()
        self.problems: Mapping[DeviceUUID, str] = {}
        """The reason why each unhealthy GPU is unhealthy."""

    @property
    def unmonitored(self) -> Mapping[DeviceUUID, str]:
        """Returns the GPUs that are only polled, because they give no events, with the reasons."""
        return self._state.unmonitored

    @property
    def xids(self) -> Mapping[DeviceUUID, int]:
        """Returns the last XID that the driver reported of each GPU; 0 for a GPU without one whose events arrive."""
        return {**dict.fromkeys(self._listened, 0), **self._xids}

    def watch(self, gpus: frozenset[DeviceUUID]) -> None:
        """Watches these GPUs from now on, also those that do not answer at the moment."""
        if gpus != self._gpus:
            self._gpus = gpus
            self._poll_due.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        if not self._settings.watches:
            log.warning("all health checks are disabled")
            return
        loop = asyncio.get_running_loop()
        self._events.start(lambda event: loop.call_soon_threadsafe(self._hear, event))
        try:
            while True:
                self._poll_due.clear()
                await self._poll()
                await asyncio.sleep(min(_CLOSEST_POLLS_SECONDS, self._poll_seconds))
                await self._pause()
        finally:
            self._events.stop()

    async def _pause(self) -> None:
        """Waits until the next poll is due, with looks in between."""
        clock = asyncio.get_running_loop().time
        due_at = clock() + (min(_DOUBT_SECONDS, self._poll_seconds) if doubted(self._state) else self._poll_seconds)
        while (left := due_at - clock()) > 0:
            try:
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await self._poll_due.wait()
                    return
            except TimeoutError:
                await self._look()

    async def _look(self) -> None:
        gpus = sorted(self._gpus - self.problems.keys())
        with suppress(NvmlUnavailable):
            for lost in await self._thread.call(lambda: fallen_off(self._open_nvml(), gpus)):
                self._take(lost)

    async def _poll(self) -> None:
        gpus = self._gpus
        if not gpus:
            return
        try:
            calls, answers = await self._thread.call(lambda: self._read(gpus))
        except NvmlUnavailable:
            return  # the machine's reading reports this; without a driver no GPU is offered
        for answer in answers:
            self._take(answer)
        if self._needs_registering(calls, gpus):
            self._registered, self._registered_at = (calls, gpus), self._now()
            self._events.watch(calls, gpus)

    def _needs_registering(self, calls: NvmlCalls, gpus: frozenset[DeviceUUID]) -> bool:
        if self._registered != (calls, gpus) or awaiting_events(self._state) & gpus:
            return True
        return bool(self._state.unmonitored) and self._now() - self._registered_at >= _REGISTER_SECONDS

    def _read(self, gpus: frozenset[DeviceUUID]) -> tuple[NvmlCalls, tuple[Polled | GpuLost, ...]]:
        calls = self._open_nvml()
        return calls, poll_health(calls, sorted(gpus))

    def _hear(self, event: HealthEvent) -> None:
        """Polls after an event: it may be the first sign of more, and events can be lost."""
        if isinstance(event, XidSeen):
            self._log_xid(event)
            if event.gpu:
                self._xids[event.gpu] = event.xid
        if isinstance(event, Monitored):
            self._listened = event.gpus
        self._count(_KINDS[type(event)])
        self._take(event)
        self._poll_due.set()

    def _log_xid(self, event: XidSeen) -> None:
        now, matter = self._now(), (event.gpu, event.xid)
        self._logged = {each: at for each, at in self._logged.items() if now - at < _XID_QUIET_SECONDS}
        if matter not in self._logged:
            self._logged[matter] = now
            log.info("GPU %s: the driver reported XID %d", event.gpu or "(not named)", event.xid)

    def _take(self, event: HealthEvent) -> None:
        before = self._state
        self._state = step(before, event, self._now(), self._settings)
        if isinstance(event, Monitored) and before.unmonitored != self._state.unmonitored:
            for uuid, reason in self._state.unmonitored.items():
                log.warning("GPU %s is polled only: %s", uuid, reason)
        found = problems(self._state)
        if found != self.problems:
            self._report(found)
            self.problems = found
            self._changed(found)

    def _report(self, found: Mapping[DeviceUUID, str]) -> None:
        for uuid, problem in found.items():
            if self.problems.get(uuid) != problem:
                log.warning("GPU %s is unhealthy: %s", uuid, problem)
        for _ in found.keys() - self.problems.keys():
            self._count("unhealthy")
        for uuid in self.problems.keys() - found.keys():
            self._count("recovered")
            log.info("GPU %s is healthy again", uuid)
