"""The GPUs of this node as it shares them now: the last reading, and what health has found since."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.device_nodes import UNIFIED_MEMORY, DeviceFiles, read_hardware
from deviceplugin.container.driver_files import NoDriver
from deviceplugin.container.driver_root import DriverRoot, driver_root
from deviceplugin.container.edits import DeviceListStrategy, Mount
from deviceplugin.host_paths import proc
from deviceplugin.inventory import GpusUnavailable, Inventory, inventory_of, with_fabric_problems, with_missing
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.memory_limits import without_reserved
from deviceplugin.nvml.reader import Nvml
from deviceplugin.own_threads import OwnThreads
from deviceplugin.settings import AgentSettings
from program.words import as_sentence
from proto.annotations.node_limits import Backend
from proto.devices import Device, DeviceUUID

log = logging.getLogger(__name__)

_VANISHED = "the driver no longer shows it"
_UNSHARED = "it can no longer be shared; the daemon's log has the reason"
_DOUBT_SECONDS = 1.0
"""Seconds to the next reading after a call failed, perhaps by chance."""
_SILENT_SECONDS = 60.0
"""A driver without persistence mode needs half a minute to wake many GPUs; one that hangs never answers."""
_NO_UNIFIED_MEMORY = (
    f"{UNIFIED_MEMORY} is missing: CUDA programs in containers that start now will find no GPU; load the kernel "
    "module nvidia-uvm and create its device file (nvidia-modprobe -u -c 0)"
)


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
        self._found = with_missing(self._found, found)
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


def gpu_reader(nvml: Nvml, configuration: Configuration) -> Callable[[], Inventory]:
    """Reads this machine; blocks. Raises GpusUnavailable without a driver or a GPU."""
    host, containers = configuration.host, configuration.containers
    files, root = DeviceFiles(Path(host.dev_root), proc(host.root)), driver_root(host)
    by_files = DeviceListStrategy.DRIVER_FILES in containers.strategies

    def read() -> Inventory:
        try:
            machine = nvml.read_machine()
        except NvmlUnavailable as error:
            raise GpusUnavailable(as_sentence(str(error)), needs_restart=error.needs_restart) from error
        if configuration.health.fabric:
            machine = with_fabric_problems(machine)
        offered = without_reserved(machine, nvml) if Backend.DRIVER in configuration.agent.limits else machine
        found = inventory_of(machine, offered, configuration)
        hardware = read_hardware(machine.gpus, files, containers.imex_channels, simulated=machine.is_simulated)
        if root is not None:
            hardware = replace(hardware, driver_mounts=_driver_mounts(root, machine.driver))
        lacks_memory = by_files and all(node.path != UNIFIED_MEMORY for node in hardware.control_nodes)
        notes = (*found.notes, _NO_UNIFIED_MEMORY) if lacks_memory else found.notes
        return replace(found, hardware=hardware, notes=notes)

    return read


def _driver_mounts(root: DriverRoot, running: str) -> tuple[Mount, ...]:
    """Finds the driver's files. `running` is the version of the driver in the kernel, empty if unknown. Raises
    GpusUnavailable.
    """
    try:
        found = root.files()
    except NoDriver as error:
        raise GpusUnavailable(as_sentence(str(error))) from error
    if running and running != found.version:
        what = f"the NVIDIA driver in the kernel is {running} and its libraries below {root.host} are {found.version}"
        raise GpusUnavailable(
            as_sentence(f"{what}: containers could not use it; load the kernel module of the libraries' version")
        )
    return found.mounts
