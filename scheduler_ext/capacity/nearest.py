"""Nodes that refuse a pod, grouped by reason, and which of them lacks least."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_ext.decide.explain import refusal_sentence
from scheduler_ext.decide.misfit import GpuRefusal, Misfit, NotOffered
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.requests import DeviceFilter

_UNKNOWN = 1e6
_NEVER = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusing:
    """Nodes that refuse the pod for the same reasons. `nearest` is the node that lacks least; `lacks` is what it
    lacks.
    """

    reason: str
    nodes: tuple[str, ...]
    nearest: str = ""
    lacks: str = ""


def grouped(misfits: Mapping[str, Misfit | NotOffered], wanted: DeviceFilter) -> tuple[Refusing, ...]:
    """Groups the nodes; the most common reason comes first. `wanted` are the pod's wishes for GPUs."""
    alike: dict[tuple[str, ...], list[tuple[float, str, str]]] = {}
    for node, misfit in misfits.items():
        alike.setdefault(misfit.words(), []).append((*_lack(misfit, wanted), node))
    groups = []
    for words, nodes in sorted(alike.items(), key=lambda item: (-len(item[1]), item[0])):
        _, lacks, nearest = min(nodes)
        only = misfits[nearest] if len(nodes) == 1 else None
        reason = "; ".join(only.words(named=True) if isinstance(only, Misfit) else words)
        names = tuple(sorted(node for _, _, node in nodes))
        groups.append(Refusing(reason=reason, nodes=names, nearest=nearest if lacks else "", lacks=lacks))
    return tuple(groups)


def _lack(misfit: Misfit | NotOffered, wanted: DeviceFilter) -> tuple[float, str]:
    """Returns how far the node is from fitting, as a fraction of the request and in words.

    For a request of `count` GPUs, the count-th nearest GPU decides.
    """
    if isinstance(misfit, NotOffered) or not misfit.verdicts:
        return _NEVER, ""
    nearest = sorted(((_distance(each), each.index, each) for each in misfit.refusals), key=lambda each: each[:2])
    distance, _, refusal = nearest[min(misfit.need.count, len(nearest)) - 1]
    return distance, refusal_sentence(refusal, misfit.need, wanted)


def _distance(refusal: GpuRefusal) -> float:
    if refusal.reason is Reason.TOO_FEW:
        return 0.0
    amounts = refusal.amounts
    return _UNKNOWN if amounts is None else max(amounts.needed - amounts.free, 0) / max(amounts.needed, 1)
