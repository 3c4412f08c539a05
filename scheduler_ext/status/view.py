"""Turns the findings of one look at the cluster into what the page shows: JSON values with short names.

Memory is in MiB, cores in percent of one GPU, times in seconds since 1970. Values only: another thread makes the page.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from proto.daemon_usage import NodeUse
from proto.devices import DeviceUUID
from proto.kubernetes.taints import CORDON
from scheduler_ext.capacity.largest import Largest
from scheduler_ext.capacity.unused import named_domains, set_aside_words
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.history import LogEntry, LogKind
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.registered import NODE_CORDONED, RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.decide.reasons import out_of_service
from scheduler_ext.status.waiting import WaitingGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoll:
    """One node with what pods hold of it. `names` are of these pods, by UID."""

    usage: NodeUsage
    alone: NodeAlone
    names: Mapping[str, PodName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of this replica: its version, the address of its API server, and whether it leads. `leader` is the host
    name that holds the Lease, which is its pod's name; empty without an election, and while none holds it.
    """

    problem: str = ""
    """The reason why no decision is possible here; empty if one is."""
    stale: str = ""
    """The reason why the cluster may be another one by now; empty while the API server answers."""
    synced: bool = True
    """False before nodes, pods and quotas are listed: what is missing may still come."""
    version: str = ""
    cluster: str = ""
    leads: bool = True
    leader: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """The last reading of each node's daemon, by node."""

    nodes: Mapping[str, NodeUse] = field(default_factory=dict)
    problem: str = ""
    """The reason why some or all are missing; empty if none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """`monotonic` and `at` (seconds since 1970) are the time of the poll. Nodes that are not named are as before."""

    monotonic: float
    at: float
    standing: Standing = Standing()
    nodes: Mapping[str, NodePoll] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    """All nodes that should offer GPUs and do not, and why."""
    gone: tuple[str, ...] = ()
    """Nodes that are no longer registered."""
    waiting: tuple[WaitingGroup, ...] = ()
    """The pods that wait, up to a bound."""
    waiting_total: int = 0
    fits: tuple[Largest, ...] = ()
    uses: Uses = Uses()
    happened: tuple[LogEntry, ...] = ()
    """The events since the poll before, as far as they are remembered."""


class ShownShare(Struct, frozen=True, omit_defaults=True):
    """A pod's part of one GPU. `state` is empty for a bound pod, else `reserved`, `kept` or `deleted`."""

    pod: str
    memory: int
    cores: int
    replicas: int
    state: str = ""


class ShownGpu(Struct, frozen=True, omit_defaults=True):
    """`memory`, `cores` and `replicas` are taken and total. `state` is why no pod may get it, empty if pods may."""

    index: int
    uuid: str
    model: str
    memory: tuple[int, int]
    cores: tuple[int, int]
    replicas: tuple[int, int]
    numa: int = -1
    mig: bool = False
    state: str = ""
    held: tuple[ShownShare, ...] = ()


class ShownNode(Struct, frozen=True, omit_defaults=True):
    """`links` are the pair scores of each GPU with those after it, -1 where unknown. `notes` are what is wrong, for
    people; `taints` need not be.
    """

    gpus: tuple[ShownGpu, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    tainted: bool = False
    """True if one of them keeps pods with GPUs away."""
    pool: str = ""
    domains: tuple[tuple[str, str], ...] = ()
    """The domains that it shares with other nodes, from wide to narrow, each behind the word for its level."""
    limits: str = ""
    """The backends that hold parts of its GPUs, as the Node names them."""


class Held(NamedTuple):
    """The part of a node, or of the cluster, that the pods of one namespace hold."""

    pods: int = 0
    gpus: float = 0.0
    memory: int = 0

    def plus(self, other: "Held") -> "Held":
        return Held(self.pods + other.pods, self.gpus + other.gpus, self.memory + other.memory)


NOTHING_HELD = Held()


class Happened(Struct, frozen=True, omit_defaults=True):
    """One entry of the list of decisions. `what` is a word of `LogKind`; `gpus` are indices."""

    number: int
    at: float
    pod: str
    what: LogKind
    node: str = ""
    gpus: tuple[int, ...] = ()


def node_of(poll: NodePoll) -> ShownNode:
    """Returns the node as the page shows it, with GPUs in the order of their indices."""
    registered, held = poll.usage.node, _held(poll)
    gpus = sorted(poll.usage.gpus, key=lambda gpu: gpu.device.index)
    uuids = [gpu.device.uuid for gpu in gpus]
    rows = (registered.pair_scores.get(uuid, {}) for uuid in uuids)
    links = tuple(tuple(row.get(other, -1) for other in uuids[at + 1 :]) for at, row in enumerate(rows))
    return ShownNode(
        gpus=tuple(_gpu(gpu, held.get(gpu.device.uuid, ()), registered) for gpu in gpus),
        links=links[:-1] if registered.pair_scores else (),
        notes=tuple(_notes(poll)),
        pool=registered.pool,
        domains=named_domains(registered),
        limits=registered.limits,
        taints=tuple(str(taint) for taint in registered.taints if taint != CORDON),
        tainted=any(taint != CORDON for taint in registered.barred_by),
    )


def _gpu(gpu: GpuUsage, held: Iterable[ShownShare], node: RegisteredNode) -> ShownGpu:
    device = gpu.device
    return ShownGpu(
        index=device.index,
        uuid=device.uuid,
        model=device.type.removeprefix("NVIDIA").strip(" -"),
        memory=(gpu.memory_mib, device.memory_mib),
        cores=(gpu.cores, device.cores),
        replicas=(gpu.replicas, device.replicas),
        numa=device.numa,
        mig=device.is_mig,
        state=out_of_service(node, device),
        held=tuple(sorted(held, key=lambda each: each.pod)),
    )


def _held(poll: NodePoll) -> Mapping[DeviceUUID, list[ShownShare]]:
    found: dict[DeviceUUID, list[ShownShare]] = {}
    parts: list[tuple[str, str, Mapping[DeviceUUID, Footprint]]] = [
        (uid, _STATES.get(record.state, ""), record.on(poll.usage.node.name).footprints)
        for uid, record in poll.alone.held.items()
    ]
    parts += [(uid, "kept", room.gpus.footprints) for uid, room in poll.alone.kept.items()]
    for uid, state, footprints in parts:
        pod = _name(poll, uid)
        for uuid, part in footprints.items():
            each = ShownShare(pod=pod, memory=part.memory_mib, cores=part.cores, replicas=part.replicas, state=state)
            found.setdefault(uuid, []).append(each)
    return found


def held_of(poll: NodePoll) -> Mapping[str, Held]:
    """Returns what pods hold of the node, by namespace."""
    devices = {gpu.device.uuid: gpu.device for gpu in poll.usage.gpus}
    found: dict[str, Held] = {}
    for uid, record in poll.alone.held.items():
        name = poll.names.get(uid)
        namespace, gpus, memory = record.namespace if name is None else name.namespace, 0.0, 0
        for uuid, part in record.on(poll.usage.node.name).footprints.items():
            device = devices.get(uuid)
            if device is not None:
                gpus += min(max(part.memory_mib / max(device.memory_mib, 1), part.cores / max(device.cores, 1)), 1.0)
                memory += part.memory_mib
        found[namespace] = found.get(namespace, NOTHING_HELD).plus(Held(1, gpus, memory))
    return found


_STATES = {RecordState.RESERVED: "reserved", RecordState.SENT: "reserved", RecordState.OUTLIVING: "deleted"}


def _notes(poll: NodePoll) -> Iterator[str]:
    if poll.usage.node.closed:
        yield f"{NODE_CORDONED.capitalize()}: no new pod gets there."
    if words := set_aside_words(poll.usage):
        yield f"{words[:1].upper()}{words[1:]}."
    for uid, record in sorted(poll.alone.held.items()):
        if record.problem:
            yield f"Pod {_name(poll, uid)}: {record.problem}."


def _name(poll: NodePoll, uid: str) -> str:
    name, record = poll.names.get(uid), poll.alone.held.get(uid)
    return str(name) if name is not None else (record.gpus.pod if record is not None else "") or uid


def happened_of(happened: LogEntry, indices: Mapping[DeviceUUID, int], *, seconds_since_1970: float) -> Happened:
    """Returns an entry of the list of decisions. `indices` are those of the node's GPUs."""
    return Happened(
        number=happened.number,
        at=round(seconds_since_1970 + happened.at, 3),
        pod=str(happened.pod),
        what=happened.what,
        node=happened.node,
        gpus=tuple(sorted(indices[uuid] for uuid in happened.gpus if uuid in indices)),
    )
