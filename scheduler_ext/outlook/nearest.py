"""Why nodes refuse a pod, grouped by reason, and which of them lacks least."""

from collections.abc import Mapping
from dataclasses import dataclass

from program.words import counted, gib, spaced
from scheduler_ext.decide.misfit import Amounts, Misfit, NotOffered, Reason, Refusal, Unit
from scheduler_ext.outlook.words import WORDS
from scheduler_ext.requests import ContainerNeed

_UNKNOWN = 1e6
_NEVER = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusing:
    """Nodes that refuse the pod for the same reasons. `nearest` is the node that lacks least; `lacks` says what it
    lacks.
    """

    reason: str
    nodes: tuple[str, ...]
    nearest: str = ""
    lacks: str = ""


def grouped(misfits: Mapping[str, Misfit | NotOffered]) -> tuple[Refusing, ...]:
    """Groups the nodes; the most common reason comes first."""
    alike: dict[str, list[tuple[float, str, str]]] = {}
    for node, misfit in misfits.items():
        alike.setdefault(_reason(misfit), []).append((*_lack(misfit), node))
    groups = []
    for reason, nodes in sorted(alike.items(), key=lambda item: (-len(item[1]), item[0])):
        _, lacks, nearest = min(nodes)
        names = tuple(sorted(node for _, _, node in nodes))
        groups.append(Refusing(reason=reason, nodes=names, nearest=nearest if lacks else "", lacks=lacks))
    return tuple(groups)


def _reason(misfit: Misfit | NotOffered) -> str:
    if isinstance(misfit, NotOffered):
        return misfit.reason.partition(": ")[2] or misfit.reason
    if not misfit.verdicts:
        return f"{counted(misfit.cards, 'GPU')}, {misfit.need.count} asked for"
    return "; ".join(sorted({WORDS.get(reason, str(reason)) for _, reason in misfit.verdicts}))


def _lack(misfit: Misfit | NotOffered) -> tuple[float, str]:
    """Returns how far the node is from fitting, as a fraction of the request and in words.

    For a request of `count` GPUs, the count-th nearest GPU decides.
    """
    if isinstance(misfit, NotOffered) or not misfit.verdicts:
        return _NEVER, ""
    nearest = sorted(((_distance(each), each.index, each) for each in misfit.refusals), key=lambda each: each[:2])
    distance, _, refusal = nearest[min(misfit.need.count, len(nearest)) - 1]
    return distance, _lacking(refusal, misfit.need)


def _distance(refusal: Refusal) -> float:
    if refusal.reason is Reason.TOO_FEW:
        return 0.0
    amounts = refusal.amounts
    return _UNKNOWN if amounts is None else max(amounts.needed - amounts.free, 0) / max(amounts.needed, 1)


def _lacking(refusal: Refusal, need: ContainerNeed) -> str:
    gpu, amounts = f"GPU {refusal.index}", refusal.amounts
    if refusal.reason is Reason.TOO_FEW:
        return f"{gpu} fits, but fewer than {need.count} GPUs do"
    if amounts is None:
        return f"{gpu}: {WORDS.get(refusal.reason, refusal.reason)}"
    have, want = _figures(amounts)
    sentences = {
        Reason.EXCLUSIVE: f"{gpu} is shared by {counted(amounts.total - amounts.free, 'container')}",
        Reason.SLOTS: f"all {amounts.total} slots of {gpu} are taken",
        Reason.CORES_EXHAUSTED: f"all cores of {gpu} are reserved",
        Reason.QUOTA: f"the quota has {have} left, {want} asked for",
    }
    what = "memory" if amounts.unit is Unit.MIB else "cores"
    return sentences.get(refusal.reason, f"{gpu} has {have} of {what} free, {want} asked for")


def _figures(amounts: Amounts) -> tuple[str, str]:
    """What is free and what is needed. Amounts that would read the same are given in MiB."""
    free, needed = max(amounts.free, 0), amounts.needed
    if amounts.unit is Unit.MIB and gib(free) != gib(needed):
        return gib(free), gib(needed)
    return f"{spaced(free)} {amounts.unit}", f"{spaced(needed)} {amounts.unit}"
