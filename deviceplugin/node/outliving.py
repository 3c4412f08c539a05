"""Pods that the API server no longer has although their containers may run: deleted by force, or while no daemon ran.

Kubelet forgets such a pod at once and stops its containers later. The pod's cgroup shows when they have ended.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from deviceplugin.allocation.decision import Holds, TakenPart
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving
from proto.kubernetes.objects import Node, Pod

_OF_THE_API = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Static pods run under another UID than the API server has them, without dashes."""


@dataclass(frozen=True, slots=True)
class Departures:
    """The state: `known` are the API server's pods as last seen, `gone` those that still run without an object."""

    as_of: int
    """The resourceVersion up to which all deletions are known."""
    known: Mapping[str, Pod]
    gone: Mapping[str, Holds] = field(default_factory=dict)
    """The parts of GPUs that each pod holds; empty if that is unknown."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Namespace and name of those that were seen before they went, by UID."""
    is_due: bool = True
    """The running processes must be checked."""


def first(pods: Mapping[str, Pod], version: int, written: Outliving | None) -> Departures:
    """Takes the first list of the node's pods. `written` is what an earlier daemon wrote on the Node."""
    before = {} if written is None else written.pods
    gone = {uid: {gpu: TakenPart(*amounts) for gpu, amounts in held.items()} for uid, held in before.items()}
    return Departures(as_of=version, known=pods, gone=gone, names={} if written is None else written.names)


def after_pods(
    departures: Departures, pods: Mapping[str, Pod], version: int, held_by: Callable[[Pod], Holds]
) -> Departures:
    """Takes the node's pods as of this resourceVersion."""
    left = {uid: pod for uid, pod in departures.known.items() if uid not in pods and not pod.has_ended}
    if not left:
        # An API server that lost history gives versions again that it gave before.
        return replace(departures, known=pods, as_of=min(departures.as_of, version))
    held = {uid: held_by(pod) for uid, pod in left.items()}
    names = {uid: pod.full_name for uid, pod in left.items()}
    return Departures(as_of=version, known=pods, gone={**departures.gone, **held}, names={**departures.names, **names})


def after_look(departures: Departures, running: Collection[str]) -> Departures:
    """Takes the pods in which a process runs; there are no others."""
    gone = {
        uid: departures.gone.get(uid, {})
        for uid in running
        if uid not in departures.known and _OF_THE_API.fullmatch(uid)
    }
    names = {uid: departures.names[uid] for uid in gone if uid in departures.names}
    return replace(departures, gone=gone, names=names, is_due=bool(gone))


def outliving_of(departures: Departures) -> Outliving:
    pods = {
        uid: {gpu: (each.containers, each.memory_mib, each.cores) for gpu, each in held.items()}
        for uid, held in departures.gone.items()
    }
    return Outliving(as_of=departures.as_of, pods=pods, names=departures.names)


def read_outliving(node: Node) -> Outliving | None:
    """Reads the Node's annotation; None if it is missing or unreadable."""
    value = node.metadata.annotations.get(NODE_OUTLIVING, "")
    try:
        return decode_outliving(value) if value else None
    except AnnotationError:
        return None
