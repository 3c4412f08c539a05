"""Reads a machine through NVML and nvidia-ml-py.

Calls block and belong to one thread, which reads each GPU on that GPU's own thread. Every GPU, call and pair fails
separately. A failure that may be chance does not count at once: the earlier reading is used until it fails again.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

from deviceplugin.machine.numa import format_cpu_list, host_node, mask_bits
from deviceplugin.machine.readings import GpuReading, MachineReading, MissingGpu, PairReading
from deviceplugin.nvml.abilities import cuda_version, driver_version, with_abilities
from deviceplugin.nvml.calls import CallFailed, GpuGone, NvmlCalls, bus_id_of, read_uuid
from deviceplugin.nvml.lanes import Hangs
from deviceplugin.nvml.library import NvmlLibrary
from deviceplugin.nvml.links import Links, address_key, read_links, read_pair
from deviceplugin.nvml.mig import read_mig_devices
from deviceplugin.nvml.sysfs import Sysfs, kernel_address
from proto.devices import DeviceUUID

_MASK_WORDS = 64
"""64-bit words of an affinity mask: 4096 CPUs or NUMA nodes, the kernel's own limit."""

_NOBODY = DeviceUUID("")
_Pair = tuple[DeviceUUID, DeviceUUID]
_PAIRS = "pairs"
"""A lane beside those of the GPUs."""
_UNDRIVEN = "it is on the PCI bus, and the NVIDIA driver does not show it"


@dataclass(frozen=True, slots=True)
class _Gpu:
    reading: GpuReading
    handle: object = None
    links: Links | None = None
    problems: tuple[str, ...] = ()
    """Problems with parts of it."""
    failure: CallFailed | None = None
    """The first call that may have failed by chance."""

    def at(self, index: int, problem: str) -> "_Gpu":
        """Returns the GPU at this index. One with a problem answers no calls."""
        reading = replace(self.reading, index=index, problem=problem)
        return _Gpu(reading) if problem else replace(self, reading=reading)


@dataclass(frozen=True, slots=True)
class _Found:
    """The identity of one place of the enumeration. With a failure it is not certain."""

    index: int
    handle: object = None
    bus_id: str = ""
    uuid: DeviceUUID = _NOBODY
    name: str = ""
    failure: CallFailed | Hangs | None = None


@dataclass(slots=True)
class Doubts:
    """Failures of one reading, by what failed: those that may be chance leave the earlier reading valid."""

    before: frozenset[Hashable] = frozenset()
    """Failures of the reading before."""
    now: set[Hashable] = field(default_factory=set)
    any_excused: bool = False

    def excuse(self, what: Hashable, failure: CallFailed | Hangs) -> bool:
        """Returns whether it may be chance: a call that failed once, a GPU that has been silent for a short time."""
        if isinstance(failure, Hangs):
            excused = not failure.is_lasting
        else:
            excused = failure.is_passing and what not in self.before
            self.now.add(what)
        self.any_excused = self.any_excused or excused
        return excused


class Nvml:
    """NVML of this process. `library` is a path to load instead of the loader's libnvidia-ml.so.1, or returns it
    now, which raises NoDriver.
    """

    def __init__(self, library: str | Callable[[], str] | None = None, *, sysfs_root: Path = Path("/sys")) -> None:
        self._library = NvmlLibrary(library, self._forget)
        self._sysfs = Sysfs(sysfs_root)
        self._known: dict[DeviceUUID, _Gpu] = {}
        self._known_pairs: dict[_Pair, PairReading] = {}
        self._doubts = Doubts()
        self._handles: dict[DeviceUUID, object] = {}
        self._driver = ""
        self._cuda: tuple[int, int] | None = None

    def open(self) -> None:
        """Loads and initialises the library once. Raises NvmlUnavailable."""
        self._library.calls()

    def close(self) -> None:
        """Lets the driver go; what was known of the GPUs stays. A driver that still owes an answer is not called."""
        self._library.close()

    def calls(self) -> NvmlCalls:
        """Returns the opened library, for other readers on the thread that owns it. Raises NvmlUnavailable."""
        return self._library.calls()

    def _forget(self) -> None:
        """Handles die with the library."""
        self._handles = {}
        self._known = {uuid: replace(gpu, handle=None) for uuid, gpu in self._known.items()}

    def handles(self) -> Mapping[DeviceUUID, object]:
        """Handles of the GPUs that answered the last reading; they die with `close`."""
        return self._handles

    def gpus(self) -> tuple[tuple[GpuReading, object], ...]:
        """Returns the last reading of the GPUs that answered, with their handles, by index."""
        known = [gpu for gpu in self._known.values() if gpu.handle is not None]
        return tuple((gpu.reading, gpu.handle) for gpu in sorted(known, key=lambda gpu: gpu.reading.index))

    @property
    def driver(self) -> str:
        """Returns the driver's version, empty before the first reading."""
        return self._driver

    def read_machine(self) -> MachineReading:
        """Returns all GPUs and pairs now; opens the library when needed. Raises NvmlUnavailable.

        A GPU lost since an earlier reading keeps its last reading with a problem; one never seen is only a problem.
        """
        count = self._library.count()
        calls = self.calls()
        self._doubts = Doubts(before=frozenset(self._doubts.now))
        gpus, unknown, problems = self._read_gpus(calls, count)
        missing = tuple(self._missing(gpus, unknown))
        pairs = self._read_pairs(calls, gpus)
        self._remember(gpus, pairs)
        self._driver = driver_version(calls) or self._driver
        self._cuda = cuda_version(calls) or self._cuda
        return MachineReading(
            driver=self._driver,
            cuda=self._cuda,
            product=self._sysfs.product(),
            cpu=self._sysfs.cpu_model(),
            gpus=tuple(gpu.reading for gpu in gpus),
            pairs=pairs,
            problems=(*problems, *(f"{gpu.name}: {gpu.problem}" for gpu in missing if gpu.index is None)),
            missing=missing,
            is_simulated=_is_simulated(calls.pynvml),
            is_doubtful=self._doubts.any_excused,
        )

    def _remember(self, gpus: Sequence[_Gpu], pairs: Mapping[tuple[int, int], PairReading]) -> None:
        at = {gpu.reading.index: gpu.reading.uuid for gpu in gpus}
        before = self._known
        whole = [gpu if gpu.links is not None else before.get(gpu.reading.uuid, gpu) for gpu in gpus]
        self._known = {gpu.reading.uuid: gpu.at(gpu.reading.index, "") for gpu in whole}
        self._known_pairs = {(at[first], at[second]): pair for (first, second), pair in pairs.items()}
        self._handles = {gpu.reading.uuid: gpu.handle for gpu in gpus if gpu.handle is not None}

    def _read_gpus(
        self, calls: NvmlCalls, count: int
    ) -> tuple[list[_Gpu], list[tuple[_Found, CallFailed | Hangs]], list[str]]:
        """Returns the GPUs, unknown ones with the reason, and sentences for people."""
        places = calls.lanes.ask("identity", {index: partial(_find, calls, index) for index in range(count)})
        found = [_Found(index, failure=place) if isinstance(place, Hangs) else place for index, place in places.items()]
        readings = self._read_found(calls, [one for one in found if one.failure is None])
        gone = [gpu for uuid, gpu in self._known.items() if uuid not in {one.uuid for one in found}]
        gpus: list[_Gpu] = []
        unknown: list[tuple[_Found, CallFailed | Hangs]] = []
        problems: list[str] = []
        for one in found:
            read = one.failure or readings[one.uuid]
            known = self._known.get(one.uuid) or _recognised(one, gone)
            if isinstance(read, _Gpu):
                problems += [f"GPU {one.index}: {each}" for each in (read.reading.problem, *read.problems) if each]
                gpus.append(self._believed(read, known))
                continue
            problem = read.problem if isinstance(read, CallFailed) else str(read)
            problems.append(f"GPU {one.index}: {problem}")
            excused = self._doubts.excuse(one.index if known is None else known.reading.uuid, read)
            if known is None:
                unknown.append((one, read))
                continue
            if known in gone:
                gone.remove(known)
            gpus.append(known.at(one.index, "" if excused else problem))
        return gpus, unknown, problems

    def _read_found(self, calls: NvmlCalls, found: Sequence[_Found]) -> Mapping[DeviceUUID, _Gpu | CallFailed | Hangs]:
        addresses = frozenset(address_key(one.bus_id) for one in found if one.bus_id)
        cpus_of_node = self._sysfs.cpus_of_node()
        return calls.lanes.ask(
            "reading",
            {one.uuid: partial(self._read_gpu, calls.noting(), one, addresses, cpus_of_node) for one in found},
        )

    def _believed(self, read: _Gpu, known: _Gpu | None) -> _Gpu:
        """Returns the reading before in place of one with failures, the first time; what is certain counts."""
        failure = read.failure
        if failure is None or not self._doubts.excuse(read.reading.uuid, failure) or known is None:
            return read
        return known.at(read.reading.index, read.reading.problem)

    def _missing(
        self, gpus: Sequence[_Gpu], unknown: Sequence[tuple[_Found, CallFailed | Hangs]]
    ) -> Iterator[MissingGpu]:
        """Yields GPUs about which only their presence is known, by the driver's count or by the PCI bus."""
        unclaimed = sorted(self._sysfs.gpus().difference(kernel_address(gpu.reading.bus_id) for gpu in gpus))
        # A GPU without an address has one of these, whichever.
        del unclaimed[: sum(not gpu.reading.bus_id for gpu in gpus)]
        for one, failure in sorted(unknown, key=lambda item: not item[0].bus_id):
            address = kernel_address(one.bus_id) or (unclaimed[0] if len(unclaimed) == 1 else "")
            if unclaimed:
                unclaimed.remove(address if address in unclaimed else unclaimed[0])
            problem = failure.problem if isinstance(failure, CallFailed) else str(failure)
            name = f"GPU {one.index}{one.uuid and f' ({one.uuid})'}{address and f' at {address}'}"
            yield MissingGpu(name=name, problem=problem, index=one.index, uuid=one.uuid)
        for address in unclaimed:
            yield MissingGpu(name=f"GPU at {address}", problem=_UNDRIVEN)

    def _read_pairs(self, calls: NvmlCalls, gpus: Sequence[_Gpu]) -> dict[tuple[int, int], PairReading]:
        """Pairs of a GPU that cannot be read are left out: what was known of its links no longer holds.

        So are those of a GPU that goes meanwhile; the next reading shows which of the two it was.
        """
        linked = [gpu for gpu in gpus if gpu.links is not None]
        read = calls.lanes.ask("links", {_PAIRS: partial(_read_pairs, calls, linked)})[_PAIRS]
        if isinstance(read, Hangs):
            self._doubts.excuse(_PAIRS, read)
        pairs: dict[tuple[int, int], PairReading] = {}
        for first, second in combinations(linked, 2):
            name, place = (first.reading.uuid, second.reading.uuid), (first.reading.index, second.reading.index)
            known = self._known_pairs.get(name)
            pair, failure = (known, None) if isinstance(read, Hangs) else read.get(name, (None, None))
            if failure is not None and self._doubts.excuse(name, failure):
                pair = known or pair
            if pair is not None:
                pairs[place] = pair
        return pairs

    def _read_gpu(
        self, calls: NvmlCalls, found: _Found, addresses: frozenset[str], cpus_of_node: dict[int, frozenset[int]]
    ) -> "_Gpu | CallFailed":
        """Returns the failure in place of a GPU without which nothing is known of it: the whole GPU's, or that of
        its memory.
        """
        before = self._known.get(found.uuid)
        known = before.reading if before is not None else None
        bus_id = found.bus_id or (known.bus_id if known else "")
        gpu = GpuReading(index=found.index, uuid=found.uuid, name=found.name, bus_id=bus_id)
        try:
            gpu, problems = _with_mig(calls, found.handle, gpu, known)
            links = read_links(calls, found.handle, addresses, self._sysfs.is_switch)
            gpu = self._with_places(calls, found.handle, with_abilities(calls, found.handle, gpu), cpus_of_node)
        except CallFailed as error:
            return error
        return _Gpu(
            replace(
                gpu,
                switch_links=links.switch_links,
                switch_evidence=links.evidence,
                nvlink_version=links.version,
                nvlink_mbps=links.mbps,
            ),
            found.handle,
            links,
            problems,
            calls.failure,
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
            pci_class=self._sysfs.pci_class(gpu.bus_id),
        )


def _find(calls: NvmlCalls, index: int) -> _Found:
    """Returns the GPU at this index. It needs name and UUID; its address may be missing."""
    handle, bus_id = None, ""
    try:
        handle = calls.ask("nvmlDeviceGetHandleByIndex", index)
        with suppress(CallFailed):
            bus_id = bus_id_of(calls.ask("nvmlDeviceGetPciInfo", handle))
        uuid = read_uuid(calls, handle)
        return _Found(index, handle, bus_id, uuid, calls.ask("nvmlDeviceGetName", handle))
    except CallFailed as error:
        return _Found(index, handle, bus_id, failure=error)


def _recognised(lost: _Found, gone: Sequence[_Gpu]) -> _Gpu | None:
    """Returns the known GPU that lost its identity: by its address, else by its place, else as the only one gone."""
    if lost.bus_id:
        return next((gpu for gpu in gone if gpu.reading.bus_id == lost.bus_id), None)
    in_place = next((gpu for gpu in gone if gpu.reading.index == lost.index), None)
    return gone[0] if in_place is None and len(gone) == 1 else in_place


def _with_mig(
    calls: NvmlCalls, handle: object, gpu: GpuReading, known: GpuReading | None
) -> tuple[GpuReading, tuple[str, ...]]:
    """Returns the GPU with its MIG devices. MIG decides what a GPU answers, so it is read first. Raises CallFailed."""
    if known is None:
        calls.forget_refusals(handle)
    before = known is not None and known.mig_enabled
    mode = calls.ask_or(None, "nvmlDeviceGetMigMode", handle)
    enabled = before if mode is None else mode[0] == 1
    if before != enabled:
        calls.forget_refusals(handle)
    memory: Any = calls.ask_if_there("nvmlDeviceGetMemoryInfo", handle)
    gpu = replace(
        gpu,
        memory_mib=memory.total // 1_048_576 if memory is not None else None,
        minor=calls.ask_or(None, "nvmlDeviceGetMinorNumber", handle),
        mig_capable=mode is not None or (known is not None and known.mig_capable),
        mig_enabled=enabled,
    )
    if not enabled:
        return gpu, ()
    devices, problems = read_mig_devices(calls, handle, gpu)
    return replace(gpu, mig_devices=devices), problems


def _read_pairs(calls: NvmlCalls, gpus: Sequence[_Gpu]) -> dict[_Pair, tuple[PairReading | None, CallFailed | None]]:
    """Returns the answer of each pair, and the first call that may have failed by chance."""
    pairs: dict[_Pair, tuple[PairReading | None, CallFailed | None]] = {}
    for first, second in combinations(gpus, 2):
        if first.handle is None or second.handle is None or first.links is None or second.links is None:
            continue
        noting = calls.noting()
        with suppress(GpuGone):
            pair = _read_pair(noting, first, first.links, second, second.links)
            pairs[first.reading.uuid, second.reading.uuid] = pair, noting.failure
    return pairs


def _read_pair(calls: NvmlCalls, first: _Gpu, first_links: Links, second: _Gpu, second_links: Links) -> PairReading:
    there = first_links.peers.get(address_key(second.reading.bus_id), 0)
    back = second_links.peers.get(address_key(first.reading.bus_id), 0)
    return read_pair(calls, (first.handle, second.handle), there, back)


def _is_simulated(pynvml: ModuleType) -> bool:
    """Only the simulation's library has this symbol, so that GPUs that are not real can never pass as real ones."""
    return hasattr(getattr(pynvml, "nvmlLib", None), "topogpuSimulated")
