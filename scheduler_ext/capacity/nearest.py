"""Nodes that refuse a pod: grouped by reason, which lacks least, and where it would fit once others are gone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from program.words import counted
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.decide.effort import finished
from scheduler_ext.decide.explain import refusal_sentence
from scheduler_ext.decide.misfit import GpuRefusal, Misfit, NotOffered, is_unresolvable, refusals_of
from scheduler_ext.decide.preempt import EvictionTrial, GpuHolder, needed_victims
from scheduler_ext.decide.reasons import Reason, joined, words_of
from scheduler_ext.requests import DeviceFilter, GpuRequest

_UNKNOWN = 1e6
_NEVER = 1e9
_MOST_NAMED = 5
"""Nodes that a line names for each reason: kube-apiserver takes 1024 bytes of an event."""

Refusal = Misfit | NotOffered


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusing:
    """Nodes that refuse the pod for the same reasons. `nearest` is the node that lacks least; `lacks` is what it
    lacks.
    """

    reason: str
    nodes: tuple[str, ...]
    nearest: str = ""
    lacks: str = ""


def grouped(misfits: Mapping[str, Refusal], wanted: DeviceFilter) -> tuple[Refusing, ...]:
    """Groups the nodes. `wanted` are the pod's wishes for GPUs."""
    words = {node: joined(misfit.words()) for node, misfit in misfits.items()}
    groups = by_reason(*refusals_of(misfits), words, misfits.get)
    return tuple(_with_nearest(group, misfits, wanted) for group in groups)


def by_reason(
    able: Mapping[str, str],
    unable: Mapping[str, str],
    known: Mapping[str, str],
    misfit_of: Callable[[str], Refusal | None],
) -> list[Refusing]:
    """Groups nodes by the words of their reasons. First come those where the pod fits once others end, which are
    `able`, then those that offer nothing now, at last those that never have room for it; the most common reason before
    others. Both have answers of `/filter` by node, and `known` the words of judged nodes. `misfit_of` judges a node
    that is alone with its reason, whose GPUs are named then.
    """
    alike: dict[str, list[str]] = {}
    _add(alike, able, known)
    hopeful = set(alike)
    _add(alike, unable, known)
    groups = []
    for reasons, nodes in alike.items():
        alone = misfit_of(nodes[0]) if len(nodes) == 1 or reasons not in hopeful else None
        rank = 0 if reasons in hopeful else 2 if isinstance(alone, Misfit) else 1
        named = joined(alone.words(named=True)) if isinstance(alone, Misfit) and len(nodes) == 1 else reasons
        groups.append((rank, -len(nodes), named, nodes))
    return [Refusing(reason=named, nodes=tuple(nodes)) for *_, named, nodes in sorted(groups)]


def _add(alike: dict[str, list[str]], answers: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Adds the nodes by the words of their reasons."""
    found = [*map(known.get, answers)]
    # Usually all nodes have one reason, and a pass over thousands of them takes most of the time of an event.
    if found and found[0] and found.count(found[0]) == len(found):
        alike.setdefault(found[0], []).extend(answers)
        return
    for node, words in zip(answers, found, strict=True):
        alike.setdefault(words or joined(words_of(answers[node])), []).append(node)


def on_nodes(group: Refusing) -> str:
    """Returns `2 nodes (a,b): too little free memory`."""
    first = nsmallest(_MOST_NAMED, group.nodes)
    names = ",".join([*first, "…"] if len(group.nodes) > len(first) else first)
    return f"{counted(len(group.nodes), 'node')} ({names}): {group.reason}"


def _with_nearest(group: Refusing, misfits: Mapping[str, Refusal], wanted: DeviceFilter) -> Refusing:
    _, lacks, nearest = min((*_lack(misfits[node], wanted), node) for node in group.nodes)
    return replace(group, nodes=tuple(sorted(group.nodes)), nearest=nearest if lacks else "", lacks=lacks)


def _lack(misfit: Refusal, wanted: DeviceFilter) -> tuple[float, str]:
    """Returns how far the node is from fitting, as a fraction of the request and in words.

    For a request of `count` GPUs, the count-th nearest GPU decides.
    """
    if isinstance(misfit, NotOffered):
        return _NEVER, ""
    if not misfit.verdicts:
        return _NEVER - misfit.cards, f"{counted(misfit.cards, 'GPU')}, {misfit.need.count} asked for"
    nearest = sorted(((_distance(each), each.index, each) for each in misfit.refusals), key=lambda each: each[:2])
    distance, _, refusal = nearest[min(misfit.need.count, len(nearest)) - 1]
    return distance, refusal_sentence(refusal, misfit.need, wanted)


def _distance(refusal: GpuRefusal) -> float:
    if refusal.reason is Reason.TOO_FEW:
        return 0.0
    amounts = refusal.amounts
    return _UNKNOWN if amounts is None else max(amounts.needed - amounts.free, 0) / max(amounts.needed, 1)


MOST_NODES = 30
"""The most nodes that are searched: those with the fewest pods."""
MOST_HOLDERS = 200
"""A node with more pods is not searched."""
MOST_WAYS = 3
_ABOVE_ALL = 2**31
"""A priority: no room is kept against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The pod fits on the node once these pods are gone; the smallest set that was found, the most important first."""

    node: str
    gone: tuple[GpuHolder, ...]


def ways(
    alone: Callable[[str], NodeAlone | None],
    request: GpuRequest,
    misfits: Mapping[str, Misfit | NotOffered],
    holders: Mapping[str, Sequence[GpuHolder]],
) -> tuple[Way, ...]:
    """Returns the nodes where the fewest pods would have to go. `alone` returns a node with the quotas of the request's
    namespace, `misfits` are the nodes that refuse the request, `holders` the pods that hold GPUs, by node.
    """
    found = []
    for node in crowded(misfits, {node: len(pods) for node, pods in holders.items()}):
        gone = _must_go(EvictionTrial(alone(node), request, _ABOVE_ALL), holders[node])
        if gone:
            found.append(Way(node=node, gone=gone))
    return tuple(sorted(found, key=lambda way: (len(way.gone), way.node))[:MOST_WAYS])


def crowded(misfits: Mapping[str, Misfit | NotOffered], pods: Mapping[str, int]) -> Sequence[str]:
    """Returns the nodes where evictions may help, those with the fewest pods first. `pods` counts them by node."""
    counts = sorted((pods.get(node, 0), node) for node, misfit in misfits.items() if not is_unresolvable(misfit))
    return [node for count, node in counts if 0 < count <= MOST_HOLDERS][:MOST_NODES]


def _must_go(trial: EvictionTrial, holders: Sequence[GpuHolder]) -> tuple[GpuHolder, ...]:
    """Returns the pods that have to go; of those that may stay the most important ones stay. Empty if the request fits
    without any of them, or not even without all of them.
    """
    ranked = sorted(holders, key=lambda holder: holder.rank)
    uids = [holder.uid for holder in ranked]
    gone = finished(needed_victims(uids, trial.fits)) if trial.fits(frozenset(uids)) else ()
    return tuple(holder for holder in ranked if holder.uid in gone)
