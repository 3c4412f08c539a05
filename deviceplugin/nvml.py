"""The driver's library, through nvidia-ml-py: a machine as it reads now.

Calls block and belong to one thread. Every GPU, call and pair fails by itself.
"""

import ctypes
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from uuid import UUID

from deviceplugin.numa import format_cpu_list, host_node, mask_bits
from deviceplugin.nvml_calls import CallFailed, GpuGone, NvmlCalls, as_text
from deviceplugin.nvml_links import Links, address_key, read_links, read_pair
from deviceplugin.readings import Fabric, GpuReading, MachineReading, PairReading
from deviceplugin.sysfs import Sysfs
from proto.devices import DeviceUUID

RECOVERY_ACTION_FIELD = 230
_RECOVERY = {
    1: "a GPU reset",
    2: "a reboot",
    3: "peer-to-peer traffic drained",
    4: "a drain and reset",
    5: "its IMEX domain recovered",
    6: "a bus reset",
    7: "a system reboot",
}

_MASK_WORDS = 64
"""64-bit words of an affinity mask: 4096 CPUs or NUMA nodes, the kernel's own limit."""

_INIT_PROBLEMS = {
    9: "the NVIDIA driver is not loaded on this machine",
    12: "no NVIDIA driver on this machine: libnvidia-ml.so.1 is not found",
    18: "the NVIDIA driver was upgraded under this process; restart it",
    28: "the NVIDIA driver finds no GPU on this machine",
    999: "the NVIDIA driver answers nothing but 'unknown error'; restart this process, its access to GPUs may be gone",
}
_RESTART_CODES = (18, 999)


class NvmlUnavailable(Exception):
    """No library, no driver or no access, in one sentence. `needs_restart`: only a new process can see it again."""

    def __init__(self, problem: str, *, needs_restart: bool = False) -> None:
        super().__init__(problem)
        self.needs_restart = needs_restart


@dataclass(frozen=True, slots=True)
class _Gpu:
    reading: GpuReading
    handle: object = None
    links: Links | None = None


class Nvml:
    """NVML of this process. `library` is a path to load instead of the loader's libnvidia-ml.so.1."""

    def __init__(self, library: str | None = None, *, sysfs_root: Path = Path("/sys")) -> None:
        self._library = library
        self._sysfs = Sysfs(sysfs_root)
        self._calls: NvmlCalls | None = None
        self._known: dict[int, GpuReading] = {}

    def open(self) -> None:
        """Loads and initialises the library once. Raises NvmlUnavailable."""
        if self._calls is not None:
            return
        import pynvml  # noqa: PLC0415 - only a process that reads GPUs pays for it

        if self._library is not None:
            try:
                pynvml.nvmlLib = ctypes.CDLL(self._library)
            except OSError as error:
                raise NvmlUnavailable(f"cannot load the NVML library {self._library}: {error}") from error
        calls = NvmlCalls(pynvml)
        try:
            calls.ask("nvmlInit")
        except CallFailed as error:
            problem = _INIT_PROBLEMS.get(error.code, f"the NVIDIA driver cannot be used: {error.problem}")
            raise NvmlUnavailable(problem, needs_restart=error.code in _RESTART_CODES) from error
        self._calls = calls

    def close(self) -> None:
        """Lets the driver go; what was known of the GPUs stays."""
        if self._calls is not None:
            self._calls.ask_or(None, "nvmlShutdown")
            self._calls = None

    def read_machine(self) -> MachineReading:
        """All GPUs and pairs now; opens the library when needed. Raises NvmlUnavailable.

        A GPU lost since an earlier reading keeps its last reading with a problem; one never seen is only a problem.
        """
        self.open()
        calls = self._opened()
        try:
            count = int(calls.ask("nvmlDeviceGetCount"))
        except CallFailed as error:
            raise NvmlUnavailable(f"the NVIDIA driver does not count its GPUs: {error.problem}") from error
        gpus, problems = self._read_gpus(calls, count)
        return MachineReading(
            driver=as_text(calls.ask_or("", "nvmlSystemGetDriverVersion")),
            cpu=self._sysfs.cpu_model(),
            gpus=tuple(gpu.reading for gpu in gpus),
            pairs=_read_pairs(calls, gpus),
            problems=tuple(problems),
        )

    def _opened(self) -> NvmlCalls:
        if self._calls is None:
            raise NvmlUnavailable("NVML is not open")
        return self._calls

    def _read_gpus(self, calls: NvmlCalls, count: int) -> tuple[list[_Gpu], list[str]]:
        addresses = frozenset(filter(None, (_address(calls, index) for index in range(count))))
        cpus_of_node = self._sysfs.cpus_of_node()
        gpus: list[_Gpu] = []
        problems: list[str] = []
        for index in range(count):
            try:
                gpu = self._read_gpu(calls, index, addresses, cpus_of_node)
            except CallFailed as error:
                problems.append(f"GPU {index}: {error.problem}")
                if index not in self._known:
                    continue
                gpu = _Gpu(replace(self._known[index], problem=error.problem))
            else:
                self._known[index] = replace(gpu.reading, problem="")
                if gpu.reading.problem:
                    problems.append(f"GPU {index}: {gpu.reading.problem}")
            gpus.append(gpu)
        return gpus, problems

    def _read_gpu(
        self, calls: NvmlCalls, index: int, addresses: frozenset[str], cpus_of_node: dict[int, frozenset[int]]
    ) -> _Gpu:
        """Raises CallFailed when not even handle and UUID can be read."""
        handle = calls.ask("nvmlDeviceGetHandleByIndex", index)
        identity = GpuReading(
            index=index,
            uuid=DeviceUUID(as_text(calls.ask("nvmlDeviceGetUUID", handle))),
            name=as_text(calls.ask("nvmlDeviceGetName", handle)),
            bus_id=as_text(calls.ask("nvmlDeviceGetPciInfo", handle).busId).upper(),
        )
        try:
            links = read_links(calls, handle, addresses, self._sysfs.is_switch)
            reading = self._with_places(calls, handle, _with_abilities(calls, handle, identity), cpus_of_node)
        except GpuGone as error:
            return _Gpu(replace(self._known.get(index, identity), problem=error.problem))
        return _Gpu(
            replace(
                reading,
                switch_links=links.switch_links,
                switch_evidence=links.evidence,
                nvlink_version=links.version,
                nvlink_mbps=links.mbps,
            ),
            handle,
            links,
        )

    def _with_places(
        self, calls: NvmlCalls, handle: object, gpu: GpuReading, cpus_of_node: dict[int, frozenset[int]]
    ) -> GpuReading:
        nodes = mask_bits(calls.ask_or((), "nvmlDeviceGetMemoryAffinity", handle, _MASK_WORDS, 0))
        cpus = mask_bits(calls.ask_or((), "nvmlDeviceGetCpuAffinity", handle, _MASK_WORDS))
        return replace(
            gpu,
            numa=host_node(self._sysfs.numa_node(gpu.bus_id), nodes, cpus, cpus_of_node),
            own_numa=calls.ask_or(None, "nvmlDeviceGetNumaNodeId", handle),
            cpu_affinity=format_cpu_list(cpus),
            numa_affinity=format_cpu_list(nodes),
        )


def _with_abilities(calls: NvmlCalls, handle: object, gpu: GpuReading) -> GpuReading:
    memory: Any = calls.ask_or(None, "nvmlDeviceGetMemoryInfo", handle)
    action = calls.field(handle, RECOVERY_ACTION_FIELD)
    return replace(
        gpu,
        memory_mib=memory.total // 1_048_576 if memory is not None else None,
        minor=calls.ask_or(None, "nvmlDeviceGetMinorNumber", handle),
        mig_enabled=calls.ask_or([0, 0], "nvmlDeviceGetMigMode", handle)[0] == 1,
        # The current generation drops when idle, the maximum width can exceed the slot.
        pcie_gen=calls.ask_or(None, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=calls.ask_or(None, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        fabric=_fabric(calls, handle),
        problem=f"the driver asks for {_RECOVERY.get(action, f'recovery action {action}')}" if action else "",
    )


def _fabric(calls: NvmlCalls, handle: object) -> Fabric | None:
    """None before Hopper and on drivers without the call."""
    make = getattr(calls.pynvml, "c_nvmlGpuFabricInfoV_t", None)
    if make is None:
        return None
    info = make()
    if calls.ask_or(None, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return None
    cluster = str(UUID(bytes=bytes(info.clusterUuid)))
    return Fabric(state=info.state, status=info.status, cluster=cluster, clique=info.cliqueId)


def _address(calls: NvmlCalls, index: int) -> str:
    try:
        handle = calls.ask("nvmlDeviceGetHandleByIndex", index)
        return address_key(as_text(calls.ask("nvmlDeviceGetPciInfo", handle).busId))
    except CallFailed:
        return ""


def _read_pairs(calls: NvmlCalls, gpus: list[_Gpu]) -> dict[tuple[int, int], PairReading]:
    """Pairs of a GPU that cannot be asked are left out: what was known of its links no longer holds.

    So are those of a GPU that goes meanwhile; the call does not say which of the two it was, the next reading does.
    """
    pairs: dict[tuple[int, int], PairReading] = {}
    for first, second in combinations(gpus, 2):
        if first.links is not None and second.links is not None:
            with suppress(GpuGone):
                pair = _read_pair(calls, first, first.links, second, second.links)
                pairs[first.reading.index, second.reading.index] = pair
    return pairs


def _read_pair(calls: NvmlCalls, first: _Gpu, first_links: Links, second: _Gpu, second_links: Links) -> PairReading:
    there = first_links.peers.get(address_key(second.reading.bus_id), 0)
    back = second_links.peers.get(address_key(first.reading.bus_id), 0)
    return read_pair(calls, (first.handle, second.handle), there, back)
