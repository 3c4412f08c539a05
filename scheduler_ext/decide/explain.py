"""Explains a decision to people: for every node the terms of its score, or what each GPU lacked."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from program.words import counted, model, ranges, spaced
from proto.annotations import keys
from proto.devices import Device
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.fgd import HIGHEST_LEVEL
from scheduler_ext.decide.misfit import Amounts, GpuRefusal, Misfit, NotOffered, Unit
from scheduler_ext.decide.reasons import NO_CORES, SEVERAL, Reason
from scheduler_ext.decide.score import NodeScore
from scheduler_ext.requests import ContainerNeed, DeviceFilter, GpuRequest
from scheduler_ext.workload import Popular


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """One GPU that was refused. `clause` is the sentence without the GPU."""

    refusal: GpuRefusal
    clause: str

    @property
    def sentence(self) -> str:
        return f"GPU {self.refusal.index}: {self.clause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node in an explanation. `score` is None if the pod does not fit; `gpus` then have what each GPU lacked, in
    the order tried.
    """

    node: str
    chosen: bool = False
    score: NodeScore | None = None
    connection: int | None = None
    """The sum of the pair scores of the pod's GPUs, where it is compared before the score."""
    reason: str
    """The reason in HAMi's words; empty if the pod fits."""
    sentence: str
    gpus: tuple[GpuLine, ...] = ()
    undecided: tuple[str, ...] = ()
    """Pods that hold GPUs of the node but have no decision."""


def explain(request: GpuRequest, decision: Decision) -> tuple[NodeLine, ...]:
    """Returns lines of all nodes: the chosen one, then the others that fit, best first, then those that do not fit, by
    name.
    """
    ranked = decision.ranked
    return (
        *(_fitting_line(name, decision) for name in ranked),
        *(_misfit_line(name, misfit, request.filter) for name, misfit in sorted(decision.misfits.items())),
    )


def score_sentence(score: NodeScore) -> str:
    """Returns `in use: replicas 20 %, cores 10 %, memory 36 %; score 6.62`, as it is before the pod."""
    replicas, cores, memory = (round(100 * part) for part in (score.replicas, score.cores, score.memory))
    return f"in use: replicas {replicas} %, cores {cores} %, memory {memory} %; score {score.total:.2f}"


def named_gpus(devices: Collection[Device]) -> str:
    """Returns `GPU 4–7 (A100-SXM4-80GB)`."""
    models = ", ".join(dict.fromkeys(model(device.type) for device in devices))
    return f"GPU {ranges([device.index for device in devices])} ({models})"


def need_sentence(need: ContainerNeed) -> str:
    """Returns a sentence about what a container needs, such as `2 GPUs with 30 000 MiB and 20 % of cores each`."""
    gpus, cores = counted(need.count, "GPU"), f" and {need.cores} % of cores" if need.cores else ""
    whose = f"container {need.container} asks" if need.container else "a container asks"
    return f"{whose} for {gpus} with {_memory(need)}{cores}" + (" each" if need.count > 1 else "")


def popular_sentence(popular: Popular) -> str:
    """Returns a sentence about a kind of pods: its part of all pods, and what such a pod needs."""
    pods, need = popular.pods, popular.pods.need
    gpus, cores = counted(need.count, "GPU"), f" and {need.cores} % of cores" if need.cores else ""
    wishes = "".join(
        (
            f" of type {' or '.join(pods.types)}" if pods.types else "",
            f" not of type {' or '.join(pods.refused_types)}" if pods.refused_types else "",
            f" in mode {pods.modes}" if pods.modes else "",
            " that no container uses" if pods.idle_only else "",
            " with good links" if pods.linked else "",
        )
    )
    host = f"{pods.host.cpu_milli / 1000:g} CPUs and {spaced(pods.host.memory_mib)} MiB"
    return f"{100 * popular.share:.1f} % of pods ask for {gpus}{wishes}, with {_memory(need)}{cores}, beside {host}"


def refusal_sentence(refusal: GpuRefusal, need: ContainerNeed, wanted: DeviceFilter) -> str:
    """Returns `GPU 3: needs 30 000 MiB, 12 288 free of 40 960`."""
    return f"GPU {refusal.index}: {refusal_clause(refusal, need, wanted)}"


def refusal_clause(refusal: GpuRefusal, need: ContainerNeed, wanted: DeviceFilter) -> str:
    """Returns the reason without the GPU: GPUs that are refused for the same reason have the same clause."""
    if refusal.amounts is not None:
        return _amount_clause(refusal, refusal.amounts, need)
    match refusal.reason:
        case Reason.NUMA:
            return f"fits, but its NUMA node has fewer than {need.count} that fit"
        case Reason.TOO_FEW:
            return f"fits, but fewer than {need.count} GPUs do"
    detail = _detail(refusal, need, wanted)
    return f"{refusal.reason.words}: {detail}" if detail else refusal.reason.words


def _detail(refusal: GpuRefusal, need: ContainerNeed, wanted: DeviceFilter) -> str:
    """Returns what explains a reason without figures; empty for a reason that explains itself."""
    detail = ""
    match refusal.reason:
        case Reason.CORDONED:
            detail = f"the node's {keys.DEVICE_CORDON} names it"
        case Reason.TYPE:
            detail = _type_sentence(refusal, wanted)
        case Reason.UUID if refusal.uuid in wanted.refused_uuids:
            detail = f"the pod's {keys.NO_USE_GPU_UUID} names it"
        case Reason.UUID:
            detail = f"the pod's {keys.USE_GPU_UUID} does not name it"
        case Reason.MIG:
            detail = f"the container needs {_memory(need)}"
        case Reason.LIMITS if need.lifted_by:
            detail = f"the container's {need.lifted_by} lifts its limits"
        case Reason.LIMITS if refusal.unheld == NO_CORES:
            detail = "the driver holds no cores"
        case Reason.LIMITS if refusal.unheld == SEVERAL:
            detail = "HAMi-core does not hold parts of several GPUs"
    return detail


def _fitting_line(name: str, decision: Decision) -> NodeLine:
    score, connection = decision.fits[name], decision.connections.get(name)
    links = "" if connection is None else f"; links {spaced(connection)}, compared first"
    level = decision.levels.get(name)
    left = "" if level is None else f"; fgd {level} of {HIGHEST_LEVEL}, compared before the score"
    return NodeLine(
        node=name,
        chosen=name == decision.node,
        score=score,
        connection=connection,
        reason="",
        sentence=f"{score_sentence(score)}{links}{left}",
    )


def _misfit_line(name: str, misfit: Misfit | NotOffered, wanted: DeviceFilter) -> NodeLine:
    if isinstance(misfit, NotOffered):
        return NodeLine(node=name, reason=misfit.reason, sentence="; ".join(misfit.words()))
    refusals: Sequence[GpuRefusal] = misfit.refusals
    asks = need_sentence(misfit.need)
    return NodeLine(
        node=name,
        reason=misfit.reason,
        sentence=asks if refusals else f"{asks}; the node has {counted(misfit.cards, 'GPU')}",
        gpus=tuple(GpuLine(refusal=each, clause=refusal_clause(each, misfit.need, wanted)) for each in refusals),
    )


def _amount_clause(refusal: GpuRefusal, amounts: Amounts, need: ContainerNeed) -> str:
    free, total, needed = spaced(amounts.free), spaced(amounts.total), spaced(amounts.needed)
    match refusal.reason:
        case Reason.REPLICAS:
            return f"all {total} replicas are taken"
        case Reason.EXCLUSIVE:
            return f"the pod needs a GPU for itself, this one has {counted(amounts.used, 'container')}"
        case Reason.CORES_EXHAUSTED:
            return f"all {total} % of the cores are reserved"
        case Reason.QUOTA:
            each = f" for {need.count} GPUs" if need.count > 1 and amounts.unit is not Unit.GPUS else ""
            what = "% of cores" if amounts.unit is Unit.PERCENT else amounts.unit
            return f"needs {needed} {what}{each}, the namespace's quota has {free} left of {total}"
        case Reason.CORES:
            return f"needs {needed} % of cores, {free} free of {total}"
    return f"needs {needed} {amounts.unit}, {free} free of {total}"


def _type_sentence(refusal: GpuRefusal, wanted: DeviceFilter) -> str:
    if wanted.modes is not None and refusal.mode not in wanted.modes:
        return f"it is in mode {refusal.mode}, the pod's {keys.VGPU_MODE} is {wanted.modes!r}"
    model = refusal.type.lower()
    refused = [word for word in wanted.refused_types if word in model]
    if refused:
        return f"it is a {refusal.type}, the pod's {keys.NO_USE_GPU_TYPE} refuses {', '.join(refused)}"
    allowed = ", ".join(wanted.types or ())
    return f"it is a {refusal.type}, the pod's {keys.USE_GPU_TYPE} allows {allowed or 'none'}"


def _memory(need: ContainerNeed) -> str:
    if need.memory_mib or need.memory_percentage is None:
        return f"{spaced(need.memory_mib)} MiB"
    return "its whole memory" if need.memory_percentage == 100 else f"{need.memory_percentage} % of its memory"
