"""The GPUs of this node as it shares them now: the last reading, and what health has found since."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deviceplugin.changes import Changes
from deviceplugin.container.edits import Hardware
from deviceplugin.machine.readings import MissingGpu
from deviceplugin.own_threads import OwnThreads
from deviceplugin.settings import AgentSettings
from proto.devices import Device, DeviceUUID, PairScores

log = logging.getLogger(__name__)

_VANISHED = "the driver no longer shows it"
_UNSHARED = "it can no longer be shared; the daemon's log has the reason"
_DOUBT_SECONDS = 1.0
"""Seconds to the next reading after a call failed, perhaps by chance."""
_SILENT_SECONDS = 60.0
"""A driver without persistence mode needs half a minute to wake many GPUs; one that hangs never answers."""


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


class Gpus:
    """`read` blocks and raises GpusUnavailable; it runs on `thread`."""

    def __init__(
        self,
        read: Callable[[], Inventory],
        thread: OwnThreads,
        changes: Changes,
        settings: AgentSettings,
        *,
        took: Callable[[float], None] = lambda _: None,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        """Calls `took` with the seconds of each reading that succeeded. Logs a warning after
        `silent_seconds` without a reading.
        """
        self._silent_seconds = silent_seconds
        self._read = read
        self._tell_took = took
        self._thread = thread
        self._changes = changes
        self._settings = settings
        self._found = Inventory()
        self._noted: tuple[str, ...] = ()
        self._ailing: Mapping[DeviceUUID, str] = {}
        self._wanted: Mapping[DeviceUUID, str] = {}
        self._again = asyncio.Event()
        self.inventory = Inventory()
        """The last reading with ailing GPUs unhealthy."""
        self.known = False
        """The driver has answered, perhaps without a GPU."""
        self.problem = ""
        """The reason why no GPU can be read; empty while they can."""
        self.is_blind = False
        """No GPU can be read, and the reason is no sign against the GPUs."""

    def by_uuid(self) -> dict[DeviceUUID, Device]:
        return {device.uuid: device for device in self.inventory.devices}

    def kept_by_uuid(self) -> dict[DeviceUUID, Device]:
        """Returns the GPUs for pods that have begun: a GPU that can be shared no longer is as `by_uuid` has it."""
        return self.by_uuid() | {device.uuid: device for device in self.inventory.kept}

    def with_own_memory(self, known: Mapping[DeviceUUID, Device]) -> dict[DeviceUUID, Device]:
        """Returns these GPUs, each with no more memory than it has."""
        has = self.inventory.memory_mib
        return {
            uuid: replace(device, memory_mib=min(device.memory_mib, has.get(uuid, device.memory_mib)))
            for uuid, device in known.items()
        }

    def set_ailing(self, problems: Mapping[DeviceUUID, str]) -> None:
        """Takes what health found, by GPU, and reads the machine again, because links may have changed with the GPUs.

        A GPU becomes unhealthy at once, and healthy only with that reading, so that it is never offered with links it
        lost.
        """
        self._wanted = dict(problems)
        self._ailing = {**self._ailing, **problems}
        self._judge()
        self._again.set()

    async def run(self) -> None:
        """Reads until cancelled. Raises GpusUnavailable when only a new process can see the GPUs again."""
        while True:
            self._again.clear()
            pause = await self._look()
            try:
                async with asyncio.timeout(pause):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def _look(self) -> float:
        """Reads the GPUs once, and returns the seconds until the next reading."""
        began, ailing = time.monotonic(), self._wanted
        overdue = asyncio.get_running_loop().call_later(self._silent_seconds, self._tell_silence)
        try:
            found = await self._thread.call(self._read)
            self._tell_took(time.monotonic() - began)
            self.problem, self.is_blind = "", False
        except GpusUnavailable as error:
            if error.needs_restart:
                raise
            self.is_blind = not error.are_gone
            if str(error) != self.problem:
                self.problem = str(error)
                log.warning("%s Trying again every %g s.", self.problem, self._settings.retry_seconds)
            found = replace(self._found, devices=(), kept=(), instances={})
        finally:
            overdue.cancel()
        self.known = True
        self._found = _with_missing(self._found, found)
        for note in found.notes:
            if note not in self._noted:
                log.warning("%s", note)
        self._noted = found.notes
        self._ailing = ailing if ailing is self._wanted else {**ailing, **self._wanted}
        self._judge()
        if self.problem:
            return self._settings.retry_seconds
        return min(_DOUBT_SECONDS, self._settings.read_seconds) if found.is_doubtful else self._settings.read_seconds

    def _tell_silence(self) -> None:
        what = "its last answer is used" if self.known else "nothing is served"
        log.warning("the NVIDIA driver has not answered for %g s, %s; dmesg may show why", self._silent_seconds, what)

    def _judge(self) -> None:
        instances = {resource: self._judged(devices) for resource, devices in self._found.instances.items()}
        devices, kept = self._judged(self._found.devices), self._judged(self._found.kept)
        ill = [device.uuid for found in (devices, *instances.values()) for device in found if not device.healthy]
        problems = {uuid: self._problem(uuid) for uuid in ill}
        inventory = replace(self._found, devices=devices, kept=kept, instances=instances, problems=problems)
        if inventory == self.inventory:
            return
        if inventory.is_simulated and not self.inventory.is_simulated:
            log.warning("the GPUs of this node are simulated: pods get no real GPU")
        if inventory.devices != self.inventory.devices:
            log.info("%d GPUs, %d of them healthy", len(devices), sum(device.healthy for device in devices))
        self.inventory = inventory
        self._changes.announce()

    def _judged(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        return tuple(
            replace(device, healthy=False) if self._gpu(device.uuid) in self._ailing else device for device in devices
        )

    def _problem(self, uuid: DeviceUUID) -> str:
        gpu = self._gpu(uuid)
        left_out = _UNSHARED if uuid in self._found.physical and not self.problem else _VANISHED
        return self._ailing.get(gpu) or self._found.problems.get(gpu, left_out)

    def _gpu(self, uuid: DeviceUUID) -> DeviceUUID:
        return self._found.parents.get(uuid, uuid)


def with_vanished(before: Sequence[Device], now: Sequence[Device]) -> tuple[Device, ...]:
    """Returns the GPUs found now, and those of before that vanished, as unhealthy: pods may still hold them."""
    found = {device.uuid for device in now}
    lost = (replace(device, healthy=False) for device in before if device.uuid not in found)
    return tuple(sorted((*now, *lost), key=lambda device: (device.index, device.uuid)))


def _with_missing(before: Inventory, now: Inventory) -> Inventory:
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
