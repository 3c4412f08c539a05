"""Finds which container holds which replicas, and whether all sources agree: for people, not for serving.

Kubelet's checkpoint and pod-resources name the container that holds the ids. The pod's annotation has what was
decided for it, and the slot's CDI spec has what the runtime gives it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deviceplugin.allocation.decision import decided_devices
from deviceplugin.container.cdi import DefinedDevice, UnreadableSpec, defined_edits, qualified, slot_in
from deviceplugin.records.holdings import Holding, ListedContainer
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import MIG_PREFIX, ContainerShares, Device, DeviceUUID
from proto.environment import CORE_LIMIT, DRIVER_HARD_LIMIT, MEMORY_LIMIT, VISIBLE_DEVICES
from proto.kubernetes.objects import Pod


class Word(StrEnum):
    AGREES = "agrees"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """The source cannot be read."""
    SILENT = "silent"
    """The source has no entry, and needs none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    word: Word
    difference: str = ""
    """A clause without its subject ("has no entry"); empty if nothing differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources; None for one that cannot be read. `spec` is the text of the slots' spec file, empty if there is
    none.
    """

    resource: str
    by_slots: bool
    recorded: tuple[Holding, ...] | None
    listed: tuple[ListedContainer, ...] | None
    pods: tuple[Pod, ...] | None
    inventory: Mapping[DeviceUUID, Device]
    """The GPUs that are registered on the Node; empty while they are unknown."""
    spec: bytes | None
    limits: str = ""
    """What holds parts of GPUs, as the Node names it; empty while it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One container that holds replicas. `shares` are its GPUs and limits as its annotation has them."""

    pod: str
    container: str
    ids: tuple[str, ...]
    slot: str
    """The slot; empty for a container without one, or if the checkpoint does not have it."""
    shares: ContainerShares
    checkpoint: Verdict
    pod_resources: Verdict
    annotation: Verdict
    spec: Verdict

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        return {
            "kubelet": self.checkpoint,
            "pod-resources": self.pod_resources,
            "annotation": self.annotation,
            "CDI spec": self.spec,
        }

    @property
    def agrees(self) -> bool:
        return all(verdict.word is not Word.DIFFERS for verdict in self.verdicts.values())


@dataclass(frozen=True, slots=True)
class _Held:
    """One container as the checkpoint or pod-resources name it. `pod` is None where the API server's is unknown."""

    name: str
    container: str
    pod: Pod | None
    recorded: frozenset[str] | None
    listed: frozenset[str] | None
    slot: str = ""

    @property
    def ids(self) -> frozenset[str]:
        return self.recorded or self.listed or frozenset()


_AGREES, _SILENT, _UNKNOWN = Verdict(Word.AGREES), Verdict(Word.SILENT), Verdict(Word.UNKNOWN)


def agreement(sources: Sources) -> tuple[Row, ...]:
    """Returns a row for each pod and container, without ids of ended pods that kubelet has not freed yet."""
    rows = (_row(each, sources) for each in _held(sources))
    return tuple(sorted(rows, key=lambda row: (row.pod, row.container)))


def _held(sources: Sources) -> list[_Held]:
    """Returns the checkpoint's containers, then those that only pod-resources lists."""
    by_uid = {pod.kubelet_uid: pod for pod in sources.pods or ()}
    listed = {(one.name, one.container): one.ids for one in sources.listed or ()}
    found: list[_Held] = []
    for entry in sources.recorded or ():
        pod = by_uid.get(entry.pod_uid)
        over = sources.pods is not None and (pod is None or pod.has_ended)
        if entry.resource_name == sources.resource and not over:
            name = pod.full_name if pod is not None else _listed_name(entry, sources)
            also = listed.pop((name, entry.container_name), None)
            slot = slot_in(entry.cdi_devices)
            found.append(_Held(name, entry.container_name, pod, entry.ids, also, slot))
    by_name = {pod.full_name: pod for pod in by_uid.values()}
    for (name, container), ids in listed.items():
        pod = by_name.get(name)
        if pod is None or not pod.has_ended:
            found.append(_Held(name, container, pod, None, ids))
    return found


def _listed_name(entry: Holding, sources: Sources) -> str:
    """Names a pod without an object: by another source of these ids, or by its UID."""
    names = [one.name for one in sources.listed or () if (one.container, one.ids) == (entry.container_name, entry.ids)]
    return names[0] if len(names) == 1 else f"UID {entry.pod_uid}"


def _row(held: _Held, sources: Sources) -> Row:
    shares, annotation = _decided(held, sources)
    return Row(
        pod=held.name,
        container=held.container,
        ids=tuple(sorted(held.ids)),
        slot=held.slot,
        shares=shares,
        checkpoint=_checkpoint(held, sources),
        pod_resources=_pod_resources(held, sources),
        annotation=annotation,
        spec=_spec(held, shares, sources),
    )


def _checkpoint(held: _Held, sources: Sources) -> Verdict:
    if sources.recorded is None:
        return _UNKNOWN
    return _AGREES if held.recorded is not None else Verdict(Word.DIFFERS, "has no entry")


def _pod_resources(held: _Held, sources: Sources) -> Verdict:
    if sources.listed is None:
        return _UNKNOWN
    if held.listed is None:
        if held.pod is None or _is_ordinary_init(held.pod, held.container):
            return _SILENT
        return Verdict(Word.DIFFERS, "does not list it")
    if held.recorded is not None and held.listed != held.recorded:
        return Verdict(Word.DIFFERS, f"lists {', '.join(sorted(held.listed))}")
    return _AGREES


def _decided(held: _Held, sources: Sources) -> tuple[ContainerShares, Verdict]:
    """Returns shares and the verdict on the annotation."""
    if held.pod is None:
        missing = Verdict(Word.DIFFERS, "the API server has no such pod here")
        return (), _UNKNOWN if sources.pods is None else missing
    try:
        decided = decided_devices(held.pod, DEVICES_ALLOCATED, sources.resource)
    except AnnotationError as error:
        return (), Verdict(Word.DIFFERS, str(error))
    by_name = {each.name: own for each, own in zip(held.pod.all_containers, decided, strict=True)}
    shares = by_name.get(held.container, ())
    problem = _problem(shares, len(held.ids), sources.inventory)
    return shares, Verdict(Word.DIFFERS, problem) if problem else _AGREES


def _problem(shares: ContainerShares, replicas: int, inventory: Mapping[DeviceUUID, Device]) -> str:
    """Returns what is wrong with a decision; empty if nothing is."""
    if len(shares) != replicas:
        return f"has {len(shares)} GPUs for {replicas} replicas"
    strangers = [share.uuid for share in shares if inventory and share.uuid not in inventory]
    if strangers:
        return f"names {', '.join(strangers)}, not a GPU of this node"
    return ""


def _spec(held: _Held, shares: ContainerShares, sources: Sources) -> Verdict:
    """A slot has a spec only while its container is about to be created."""
    if not held.slot or not sources.spec:
        return _UNKNOWN if held.slot and sources.spec is None else _SILENT
    try:
        device = defined_edits("the slots' file", sources.spec).get(qualified(held.slot))
    except UnreadableSpec as error:
        return Verdict(Word.DIFFERS, str(error).rstrip("."))
    if device is None:
        return _SILENT
    difference = _difference(_environment(device), shares, sources.inventory)
    return Verdict(Word.DIFFERS, difference) if difference else _AGREES if shares else _UNKNOWN


def _environment(device: DefinedDevice) -> Mapping[str, str]:
    pairs = (str(word).partition("=") for edits in device.edits for word in edits.get("env", ()))
    return {key: value for key, _, value in pairs}


def _difference(given: Mapping[str, str], shares: ContainerShares, inventory: Mapping[DeviceUUID, Device]) -> str:
    """Compares a container's environment with its shares; if it names no GPUs, the limits may have any order."""
    if not shares:
        return ""
    visible = given.get(VISIBLE_DEVICES, "").split(",")
    named = all(each.startswith(("GPU-", MIG_PREFIX)) for each in visible)
    if named and sorted(visible) != sorted(share.uuid for share in shares):
        return f"gives {', '.join(visible)}"
    limited = [share for share in shares if not share.uuid.startswith(MIG_PREFIX)]
    if named:
        limited.sort(key=lambda share: visible.index(share.uuid))
    memory = [share.memory_mib or _whole(share.uuid, inventory) for share in limited]
    wanted = [(f"{mib}m" if mib else None, str(share.cores)) for mib, share in zip(memory, limited, strict=True)]
    by_driver = _by_driver(given, memory)
    found = [
        (given.get(f"{MEMORY_LIMIT}_{n}", limit), given.get(f"{CORE_LIMIT}_{n}")) for n, limit in enumerate(by_driver)
    ]
    found = [(None if want[0] is None else mib, cores) for want, (mib, cores) in zip(wanted, found, strict=True)]
    if found == wanted or (not named and sorted(map(str, found)) == sorted(map(str, wanted))):
        return ""
    return "limits to " + ", ".join(f"{(mib or 'any').rstrip('m')} MiB and {cores or 'any'} %" for mib, cores in found)


def _by_driver(given: Mapping[str, str], memory: Sequence[int]) -> Sequence[str | None]:
    """Returns the limits that the driver has for GPUs with these amounts. The variable has the smallest of them."""
    hard = given.get(DRIVER_HARD_LIMIT)
    if hard is None:
        return [None] * len(memory)
    return [f"{mib if hard == str(min(filter(None, memory), default=0)) else hard}m" for mib in memory]


def _whole(uuid: DeviceUUID, inventory: Mapping[DeviceUUID, Device]) -> int:
    """Returns the GPU's memory in MiB, 0 if unknown."""
    return inventory[uuid].memory_mib if uuid in inventory else 0


def _is_ordinary_init(pod: Pod, container: str) -> bool:
    return any(each.name == container and not each.is_sidecar for each in pod.spec.init_containers)
