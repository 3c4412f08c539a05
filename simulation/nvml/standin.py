"""The fake NVML in Python, for machines without a C compiler: an object put at `pynvml.nvmlLib`.

It reads the same file as the library, once, and knows no faults and no events.
"""

# ruff: noqa: N802, N815 - the names are those of the C functions
import ctypes
import os
import time
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

from deviceplugin.machine.description import cpu_numbers
from simulation.nvml.machine import SWITCH, Gpu, Machine, MachineFileError, Mig, joined, read_machine
from simulation.nvml.machine_file import ERRORS, MACHINE_FILE_VARIABLE

_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3  # nvmlValueType_t
_LARGEST_UNSIGNED_INT = 0xFFFFFFFF
_SM_CLOCK = 1
_NVLINK_CAPS, _PCI_CAPS = 2, 4
_WHOLE_GPU = 0xFFFFFFFF
_XID_EVENTS = 8  # nvmlEventTypeXidCriticalError
_MIG_HANDLES = 1000
"""A MIG device's handle is its GPU's and this much for its place among the GPU's, counted from 1."""
_MOST_MIG_DEVICES = 7
_ANSWERS = {"MemoryInfo_v2": 0x02000028, "FabricV2": 0x02000024, "FabricV3": 0x03000028}


class _Refused(Exception):
    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.code = ERRORS[error]


class StandIn:
    """One machine, answering as the C library does. A function it lacks is one an old driver lacks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._started = False

    def __getattr__(self, name: str) -> Callable[..., int]:
        """The C function `name`. AttributeError where there is none."""
        answer = getattr(type(self), f"_{name}", None) if name.startswith("nvml") else None
        if answer is None:
            raise AttributeError(name)

        def call(*arguments: object) -> int:
            if not self._started and name != "nvmlInitWithFlags":
                return ERRORS["UNINITIALIZED"]
            if {name, name.rsplit("_v", 1)[0]} & self._machine.refused:
                return ERRORS["NOT_SUPPORTED"]
            try:
                answer(self, *map(_plain, arguments))
            except _Refused as e:
                return e.code
            return ERRORS["SUCCESS"]

        return call

    def _gpu(self, handle: Any) -> Gpu:
        return self._machine.gpus[self._index(handle)]

    def _index(self, handle: Any) -> int:
        number = _address(handle) - 1
        if not 0 <= number < len(self._machine.gpus):
            raise _Refused("INVALID_ARGUMENT")
        return number

    def _mig(self, handle: Any) -> Mig:
        place, index = divmod(_address(handle), _MIG_HANDLES)
        if not place or not 0 < index <= len(self._machine.gpus) or place > len(self._machine.gpus[index - 1].migs):
            raise _Refused("INVALID_ARGUMENT")
        return self._machine.gpus[index - 1].migs[place - 1]

    def _parent(self, handle: Any) -> Gpu:
        self._mig(handle)
        return self._machine.gpus[_address(handle) % _MIG_HANDLES - 1]

    def _is_mig(self, handle: Any) -> bool:
        return _address(handle) >= _MIG_HANDLES

    def _nvmlInitWithFlags(self, _flags: int) -> None:
        if self._machine.facts["init"] != "0":
            raise _Refused(next(name for name, code in ERRORS.items() if str(code) == self._machine.facts["init"]))
        self._started = True

    def _nvmlShutdown(self) -> None:
        self._started = False

    def _nvmlSystemGetDriverVersion(self, to: Any, _size: int) -> None:
        to.value = self._machine.facts["driver"].encode()

    def _nvmlSystemGetNVMLVersion(self, to: Any, _size: int) -> None:
        to.value = self._machine.facts["nvml"].encode()

    def _nvmlSystemGetCudaDriverVersion(self, to: Any) -> None:
        to.value = int(self._machine.facts["cuda"])

    _nvmlSystemGetCudaDriverVersion_v2 = _nvmlSystemGetCudaDriverVersion

    def _nvmlDeviceGetCount_v2(self, to: Any) -> None:
        to.value = len(self._machine.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: int, to: Any) -> None:
        if not 0 <= index < len(self._machine.gpus):
            raise _Refused("INVALID_ARGUMENT")
        # A handle is opaque: nobody looks behind it, so the index plus one will do.
        ctypes.c_void_p.from_buffer(to).value = index + 1

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, to: Any) -> None:
        for index, gpu in enumerate(self._machine.gpus, start=1):
            for place, known in enumerate([gpu.words[1], *(mig.uuid for mig in gpu.migs)]):
                if known == uuid.decode():
                    ctypes.c_void_p.from_buffer(to).value = index + place * _MIG_HANDLES
                    return
        raise _Refused("NOT_FOUND")

    def _nvmlDeviceGetName(self, handle: Any, to: Any, _size: int) -> None:
        name = f"{self._parent(handle).name} MIG {self._mig(handle).profile}" if self._is_mig(handle) else ""
        to.value = (name or self._gpu(handle).name).encode()

    def _nvmlDeviceGetUUID(self, handle: Any, to: Any, _size: int) -> None:
        to.value = (self._mig(handle).uuid if self._is_mig(handle) else self._gpu(handle).words[1]).encode()

    def _nvmlDeviceGetMinorNumber(self, handle: Any, to: Any) -> None:
        to.value = self._gpu(handle).number(4)

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, to: Any) -> None:
        gpu = self._gpu(handle)
        _fill_pci(to, gpu.words[2], int(gpu.words[3], 16))

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, to: Any) -> None:
        if self._is_mig(handle):
            to.total = to.free = self._mig(handle).memory_mib << 20
            return
        gpu = self._gpu(handle)
        to.total, to.used = gpu.number(7) << 20, gpu.number(8) + gpu.used_mib << 20
        to.free = to.total - to.used

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, to: Any) -> None:
        gpu = None if self._is_mig(handle) else self._gpu(handle)
        if to.version != _ANSWERS["MemoryInfo_v2"]:
            raise _Refused("ARGUMENT_VERSION_MISMATCH")
        if gpu is None:
            to.total = to.free = self._mig(handle).memory_mib << 20
            return
        to.total, to.reserved, to.used = gpu.number(7) << 20, gpu.number(8) << 20, gpu.used_mib << 20
        to.free = to.total - to.reserved - to.used

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> None:
        current.value = pending.value = _told(self._gpu(handle).number(9), missing=-1)

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, to: Any) -> None:
        to.value = _MOST_MIG_DEVICES if self._gpu(handle).number(9) == 1 else 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, place: int, to: Any) -> None:
        gpu = self._gpu(handle)
        _told(gpu.number(9), missing=-1)
        if place >= _MOST_MIG_DEVICES:
            raise _Refused("INVALID_ARGUMENT")
        if place >= len(gpu.migs):
            raise _Refused("NOT_FOUND")
        ctypes.c_void_p.from_buffer(to).value = self._index(handle) + 1 + (place + 1) * _MIG_HANDLES

    def _nvmlDeviceIsMigDeviceHandle(self, handle: Any, to: Any) -> None:
        to.value = int(self._is_mig(handle))

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, to: Any) -> None:
        self._mig(handle)
        ctypes.c_void_p.from_buffer(to).value = _address(handle) % _MIG_HANDLES

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any, to: Any) -> None:
        to.value = self._mig(handle).gi

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any, to: Any) -> None:
        to.value = self._mig(handle).ci

    def _nvmlDeviceGetAttributes_v2(self, handle: Any, to: Any) -> None:
        mig = self._mig(handle)
        to.gpuInstanceSliceCount, to.computeInstanceSliceCount = mig.gpu_slices, mig.compute_slices
        to.memorySizeMB, to.sharedCopyEngineCount = mig.memory_mib, mig.gpu_slices
        to.multiprocessorCount = mig.compute_slices * (14 if self._parent(handle).number(5) < 9 else 16)

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> None:
        major.value, minor.value = self._gpu(handle).number(5), self._gpu(handle).number(6)

    def _tell(self, word: int, handle: Any, to: Any) -> None:
        to.value = _told(self._gpu(handle).number(word))

    _nvmlDeviceGetMaxPcieLinkGeneration = partialmethod(_tell, 10)
    _nvmlDeviceGetMaxPcieLinkWidth = partialmethod(_tell, 11)
    _nvmlDeviceGetCurrPcieLinkGeneration = partialmethod(_tell, 12)
    _nvmlDeviceGetCurrPcieLinkWidth = partialmethod(_tell, 13)

    def _nvmlDeviceGetNumaNodeId(self, handle: Any, to: Any) -> None:
        to.value = _told(self._gpu(handle).number(14), missing=-1)

    def _nvmlDeviceGetMemoryAffinity(self, handle: Any, words: int, to: Any, _scope: int) -> None:
        _fill_mask(to, words, self._gpu(handle).nodes)

    def _nvmlDeviceGetCpuAffinity(self, handle: Any, words: int, to: Any) -> None:
        _fill_mask(to, words, self._gpu(handle).cpus)

    def _nvmlDeviceGetTopologyCommonAncestor(self, first: Any, second: Any, to: Any) -> None:
        a, b = sorted((self._index(first), self._index(second)))
        to.value = self._machine.levels.get((a, b), 0)

    def _nvmlDeviceGetP2PStatus(self, first: Any, second: Any, caps: int, to: Any) -> None:
        a, b = self._gpu(first), self._gpu(second)
        not_supported = 5
        pcie = not_supported if 1 in (a.number(9), b.number(9)) else a.number(17)
        if caps == _NVLINK_CAPS or (joined(a, b) and caps != _PCI_CAPS):
            to.value = 0 if joined(a, b) else not_supported
        else:
            to.value = pcie

    def _link(self, handle: Any, number: int) -> tuple[int, str]:
        links = self._gpu(handle).links
        if not links or "nvlink" in self._machine.refused:
            raise _Refused("NOT_SUPPORTED")
        if number >= len(links):
            raise _Refused("INVALID_ARGUMENT")
        return links[number]

    def _nvmlDeviceGetNvLinkState(self, handle: Any, number: int, to: Any) -> None:
        self._link(handle, number)
        to.value = 1

    def _nvmlDeviceGetNvLinkVersion(self, handle: Any, number: int, to: Any) -> None:
        self._link(handle, number)
        to.value = self._gpu(handle).number(18)

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, number: int, to: Any) -> None:
        _fill_pci(to, self._link(handle, number)[1], 0)

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, number: int, to: Any) -> None:
        to.value = self._link(handle, number)[0]

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: int, values: Any) -> None:
        for value in values[:count]:
            value.valueType, value.nvmlReturn, value.value.ullVal = _UNSIGNED_INT, 0, 0
            try:
                value.value.ullVal = self._field(handle, value.fieldId, value.scopeId)
            except _Refused as e:
                value.nvmlReturn = e.code
            if value.value.ullVal > _LARGEST_UNSIGNED_INT:
                value.valueType = _UNSIGNED_LONG_LONG

    def _field(self, handle: Any, number: int, scope: int) -> int:
        if f"field:{number}" in self._machine.refused:
            raise _Refused("NOT_SUPPORTED")
        gpu = self._gpu(handle)
        match number:
            case 230:
                return 0
            case 170:
                return int(gpu.number(16) > 0)
            case 171:
                return int(_told(gpu.number(16)) > 0)
            case 172:
                return _told(gpu.number(16))
            case 90 | 91 | 147 | 164 | 165 | 166:
                self._link(handle, scope if number >= 164 else 0)
                switched = sum(kind == SWITCH for kind, _ in gpu.links)
                mbps, version = gpu.number(19), gpu.number(18)
                return {90: mbps, 91: len(gpu.links), 147: switched, 164: mbps, 165: 1, 166: version}[number]
        return self._counted(gpu, handle, number)

    def _counted(self, gpu: Gpu, handle: Any, number: int) -> int:
        """What the machine file says of a field, else 0 where the GPU has it at all."""
        ecc = bool(gpu.number(15))
        match number:
            case 3 | 4 | 5 | 6:
                there = ecc
            case 142 | 143 | 145:
                there = ecc and gpu.number(5) >= 8
            case 38 | 45 | 52 | 59 | 138 | 139:
                self._link(handle, 0)
                there = True
            case 83 | 94 | 197 | 198:
                there = True
            case _:
                there = number in gpu.counters
        if not there:
            raise _Refused("NOT_SUPPORTED")
        return gpu.counters.get(number, 0)

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, to: Any) -> None:
        fabric = self._gpu(handle).fabric
        if to.version not in (_ANSWERS["FabricV2"], _ANSWERS["FabricV3"]):
            raise _Refused("ARGUMENT_VERSION_MISMATCH")
        if fabric is None:
            raise _Refused("NOT_SUPPORTED")
        to.state, to.status, to.cliqueId, cluster = fabric
        to.clusterUuid[:] = list(cluster)

    def _nvmlDeviceGetRemappedRows(self, handle: Any, *to: Any) -> None:
        if not self._gpu(handle).number(15) or self._gpu(handle).number(5) < 8:
            raise _Refused("NOT_SUPPORTED")
        for count in to:
            count.value = 0

    def _nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any, to: Any) -> None:
        if not self._gpu(handle).number(15) or self._gpu(handle).number(5) >= 8:
            raise _Refused("NOT_SUPPORTED")
        to.value = 0

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, _type: int, _counter: int, to: Any) -> None:
        _told(self._gpu(handle).number(15))
        to.value = 0

    def _nvmlDeviceGetSupportedEventTypes(self, handle: Any, to: Any) -> None:
        self._index(handle)
        to.value = _XID_EVENTS

    def _nvmlEventSetCreate(self, _to: Any) -> None:
        """Nothing is ever put in."""

    def _nvmlEventSetFree(self, _set: Any) -> None: ...

    def _nvmlDeviceRegisterEvents(self, handle: Any, types: int, _set: Any) -> None:
        self._index(handle)
        if types & ~_XID_EVENTS:
            raise _Refused("NOT_SUPPORTED")

    def _nvmlEventSetWait_v2(self, _set: Any, _to: Any, timeout_ms: int) -> None:
        time.sleep(timeout_ms / 1000)
        raise _Refused("TIMEOUT")

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, to: Any) -> None:
        gpu = self._gpu(handle)
        if gpu.number(9) == 1:
            raise _Refused("NOT_SUPPORTED")
        to.gpu, to.memory = gpu.usage[:2]

    def _nvmlDeviceGetTemperature(self, handle: Any, _sensor: int, to: Any) -> None:
        to.value = self._gpu(handle).usage[2]

    def _nvmlDeviceGetPowerUsage(self, handle: Any, to: Any) -> None:
        to.value = self._gpu(handle).usage[3]

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: int, to: Any) -> None:
        to.value = self._gpu(handle).usage[4 if kind == _SM_CLOCK else 5]

    def _codec(self, place: int, handle: Any, percent: Any, period_us: Any) -> None:
        gpu = self._gpu(handle)
        if gpu.number(9) == 1:
            raise _Refused("NOT_SUPPORTED")
        percent.value, period_us.value = gpu.usage[place], 167_000

    _nvmlDeviceGetEncoderUtilization = partialmethod(_codec, 6)
    _nvmlDeviceGetDecoderUtilization = partialmethod(_codec, 7)

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, to: Any) -> None:
        to.value = self._gpu(handle).usage[8]

    def _list_processes(self, which: int, handle: Any, count: Any, to: Any) -> None:
        found = [process for process in self._gpu(handle).processes if process[0] == which]
        room, count.value = count.value, len(found)
        if len(found) > room:
            raise _Refused("INSUFFICIENT_SIZE")
        for place, (_, pid, used, _) in enumerate(found):
            to[place].pid, to[place].usedGpuMemory = pid, used << 20
            to[place].gpuInstanceId = to[place].computeInstanceId = _WHOLE_GPU

    _nvmlDeviceGetComputeRunningProcesses_v3 = partialmethod(_list_processes, 0)
    _nvmlDeviceGetGraphicsRunningProcesses_v3 = partialmethod(_list_processes, 1)
    _nvmlDeviceGetMPSComputeRunningProcesses_v3 = partialmethod(_list_processes, 2)

    def _nvmlDeviceGetProcessUtilization(self, handle: Any, to: Any, count: Any, since_us: int) -> None:
        if self._gpu(handle).number(9) == 1:
            raise _Refused("NOT_SUPPORTED")
        busy = [process for process in self._gpu(handle).processes if process[3]]
        room, count.value = count.value, len(busy)
        if not busy:
            raise _Refused("NOT_FOUND")
        if len(busy) > room:
            raise _Refused("INSUFFICIENT_SIZE")
        for place, (_, pid, _, percent) in enumerate(busy):
            to[place].pid, to[place].smUtil, to[place].timeStamp = pid, percent, since_us + 1_000_000


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _plain(argument: Any) -> Any:
    """What a ctypes argument stands for: byref's target, or the number of a by-value integer."""
    if hasattr(argument, "_obj"):
        return argument._obj
    by_value = isinstance(argument, ctypes._SimpleCData)
    return argument.value if by_value else argument


def _told(value: int, missing: int = 0) -> int:
    if value == missing:
        raise _Refused("NOT_SUPPORTED")
    return value


def _fill_pci(to: Any, bus: str, device_id: int) -> None:
    domain, number, device = bus.partition(".")[0].split(":")
    to.busId = bus.encode()
    to.busIdLegacy = f"{domain[4:]}:{number}:{device}.0".encode()
    to.domain, to.bus, to.device = int(domain, 16), int(number, 16), int(device, 16)
    to.pciDeviceId = device_id


def _fill_mask(to: Any, words: int, cpulist: str) -> None:
    masks = [0] * words
    for bit in cpu_numbers(cpulist):
        if bit >= 64 * words:
            raise _Refused("INSUFFICIENT_SIZE")
        masks[bit // 64] |= 1 << bit % 64
    to[:] = masks


def install(path: Path | None = None) -> None:
    """Put the machine of `path` (else of the environment) where nvidia-ml-py looks. Raises MachineFileError."""
    import pynvml  # noqa: PLC0415 - only the process that stands in pays for it

    path = path or Path(os.environ.get(MACHINE_FILE_VARIABLE, ""))
    try:
        pynvml.nvmlLib = StandIn(read_machine(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as e:
        raise MachineFileError(f"the machine file {path} cannot be read: {e}") from e
