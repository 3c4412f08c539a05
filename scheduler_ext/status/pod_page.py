"""One pod as the page shows it: where it is and why, what its containers get, and what happened to it. No IO."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from program.words import counted, gib
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import ContainerShares
from proto.kubernetes.objects import EventSource, Object, ObjectMeta, Pod
from scheduler_ext.capacity.account import Account
from scheduler_ext.capacity.pod_verdict import node_of
from scheduler_ext.cluster.pod_index import seconds_of
from scheduler_ext.cluster.snapshot import NodeUsage, Snapshot
from scheduler_ext.decide.explain import named_gpus, need_sentence
from scheduler_ext.requests import RequestError, RequestSettings, read_needs
from scheduler_ext.status.waiting import WhyWaiting, owner_of

MOST_SHOWN = 20
LONGEST_MESSAGE = 1024


class ShownEvent(Struct, frozen=True, omit_defaults=True):
    """`at` is the time in seconds since 1970 when it last happened."""

    at: float
    reason: str
    message: str
    source: str = ""
    count: int = 1
    warning: bool = False


class PodEvents(Struct, frozen=True):
    """The last events, the newest first, or why they cannot be read."""

    events: tuple[ShownEvent, ...] = ()
    problem: str = ""


class _Series(Object):
    count: int = 0
    last_observed_time: str | None = None


class SeenEvent(Object):
    """An Event, also one written through events.k8s.io, which has a series in place of counts."""

    metadata: ObjectMeta
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    source: EventSource | None = None
    reporting_component: str | None = None
    event_time: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    series: _Series | None = None


def shown_events(events: Sequence[SeenEvent]) -> tuple[ShownEvent, ...]:
    return tuple(sorted(map(_shown, events), key=lambda each: -each.at)[:MOST_SHOWN])


def _shown(event: SeenEvent) -> ShownEvent:
    series = event.series or _Series()
    times = (series.last_observed_time, event.last_timestamp, event.event_time, event.first_timestamp)
    return ShownEvent(
        at=seconds_of(next(filter(None, (*times, event.metadata.creation_timestamp)), None)),
        reason=event.reason,
        message=event.message[:LONGEST_MESSAGE],
        source=(event.source.component if event.source is not None else "") or event.reporting_component or "",
        count=max(series.count, event.count or 1),
        warning=event.type == "Warning",
    )


_UNHELD = "nothing holds it to its part"


class ShownContainer(Struct, frozen=True, omit_defaults=True):
    """A container: its name, its request, the GPUs that were decided for it, and what holds it to its part."""

    name: str
    asks: str = ""
    gets: str = ""
    held_by: str = ""


class ShownPod(Struct, frozen=True, omit_defaults=True):
    """`sentence` follows the pod's name; `why` is there for a pod that waits. `story` has what happened to it, oldest
    first, and `events` are those of the API server, the newest first.
    """

    pod: str
    sentence: str
    phase: str
    since: float
    node: str = ""
    owner: str = ""
    scheduler: str = ""
    priority: int = 0
    containers: tuple[ShownContainer, ...] = ()
    said: str = ""
    """The last decision about it."""
    story: tuple[str, ...] = ()
    events: tuple[ShownEvent, ...] = ()
    events_problem: str = ""
    why: WhyWaiting | None = None


def shown_pod(
    pod: Pod,
    found: Account,
    settings: RequestSettings,
    snapshot: Snapshot,
    why: WhyWaiting | None,
    *,
    events: PodEvents,
) -> ShownPod:
    """Returns the pod. `found` is the account of it, and `why` the answer about it while it waits."""
    leaves = pod.metadata.deletion_timestamp is not None
    usage = node_of(snapshot, found.node)
    return ShownPod(
        pod=found.pod,
        sentence=found.sentence,
        phase="Terminating" if leaves else pod.status.phase or "Pending",
        since=seconds_of(pod.metadata.creation_timestamp),
        node=found.node,
        owner=owner_of(pod),
        scheduler=pod.spec.scheduler_name,
        priority=pod.spec.priority or 0,
        containers=tuple(_containers(pod, settings, usage)),
        said=found.said,
        story=found.history,
        events=events.events,
        events_problem=events.problem,
        why=None if found.node else why,
    )


def _containers(pod: Pod, settings: RequestSettings, usage: NodeUsage | None) -> Iterator[ShownContainer]:
    try:
        shares = decode_pod_devices(DEVICES_ALLOCATED, pod.metadata.annotations.get(DEVICES_ALLOCATED, ""))
    except AnnotationError:
        shares = ()
    for at, container in enumerate(pod.all_containers):
        held = shares[at] if at < len(shares) else ()
        try:
            (need,) = read_needs([container], settings)
            asks = "" if need is None else need_sentence(need)
        except RequestError as error:
            asks = str(error)
        yield ShownContainer(name=container.name, asks=asks, gets=_gets(held, usage), held_by=_held_by(held, usage))


def _gets(held: ContainerShares, usage: NodeUsage | None) -> str:
    devices = {} if usage is None else {gpu.device.uuid: gpu.device for gpu in usage.gpus}
    known = [devices[share.uuid] for share in held if share.uuid in devices]
    if not held:
        return ""
    where = named_gpus(known) if len(known) == len(held) else ", ".join(share.uuid for share in held)
    cores = f"{held[0].cores} % of cores" if held[0].cores else "cores without limit"
    return f"{where}: {gib(held[0].memory_mib)} and {cores}{' of each' if len(held) > 1 else ''}"


def _held_by(held: ContainerShares, usage: NodeUsage | None) -> str:
    if not held or usage is None:
        return ""
    memory = {gpu.device.uuid: gpu.device.memory_mib for gpu in usage.gpus}
    if all(share.memory_mib >= memory.get(share.uuid, 0) for share in held):
        return f"{counted(len(held), 'whole GPU')}: nothing needs to hold it"
    return ", ".join(usage.node.limits.backends) or _UNHELD
