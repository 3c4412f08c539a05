"""Judges pods that wait: the status page, the kubectl plugin and `explain` show one answer, as events do. No IO."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from program.words import counted, gib
from proto.annotations import keys
from proto.annotations.spelling import DOMAINS, misspelt
from proto.annotations.unhealthy_since import stamp
from proto.environment import is_judged
from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.nearest import Refusing, Way, grouped
from scheduler_ext.capacity.rooms import lack_of
from scheduler_ext.cluster.closed_nodes import REFUSED_ALIKE, SET_ASIDE_NODE, last_set_aside
from scheduler_ext.cluster.gangs import Gang
from scheduler_ext.cluster.snapshot import NodeUsage, Snapshot, quota_for
from scheduler_ext.decide.decision import Decision, decide_anywhere
from scheduler_ext.decide.misfit import Misfit, is_unresolvable
from scheduler_ext.decide.place import place
from scheduler_ext.decide.reasons import REMEDIES, Reason
from scheduler_ext.membership import membership_of
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, read_request

MOST_REASONS = 3
"""Reasons of nodes in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVerdict:
    """The verdict on a pod without a node in the cluster as it is. `sentence` follows the pod's name. `decision` is
    None where no node has to be looked at.
    """

    sentence: str
    request: GpuRequest | None = None
    decision: Decision | None = None
    refused: tuple[Refusing, ...] = ()
    lacks_group: bool = False
    """True if the pod would fit, and not all of its group."""

    @property
    def fits(self) -> bool:
        return self.decision is not None and self.decision.node is not None and not self.lacks_group


def waits(pod: Pod, settings: RequestSettings) -> bool:
    """Returns whether the pod requests GPUs and has neither a node nor an end. Then it is listed as waiting."""
    return not pod.spec.node_name and not pod.has_ended and settings.names.are_requested_by(pod)


def node_of(snapshot: Snapshot, name: str) -> NodeUsage | None:
    """Returns the node, also if it is closed to the pod that the snapshot is for; None if it offers nothing."""
    return snapshot.nodes.get(name) or snapshot.closed.get(name)


def request_of(pod: Pod, settings: RequestSettings) -> GpuRequest | PodVerdict:
    """Returns the request; the answer itself for a pod for which no node has to be looked at."""
    if pod.metadata.deletion_timestamp is not None and not pod.spec.node_name:
        return PodVerdict(sentence="is being deleted before it has a node")
    try:
        request = read_request(pod, settings)
    except RequestError as error:
        return PodVerdict(sentence=f"waits: {error}; no node fits until the pod is changed")
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        return PodVerdict(sentence=f"waits until its scheduling gates are removed: {gates}", request=request)
    if request is None:
        alone = "kube-scheduler places it alone"
        if not settings.names.are_requested_by(pod):
            return PodVerdict(sentence=f"asks for no GPU: {alone}")
        return PodVerdict(sentence=f"gets no GPU, because it asks for no {settings.names.count}: {alone}")
    return request


def judge_pod(pod: Pod, settings: RequestSettings, snapshot: Snapshot, gang: Gang | None = None) -> PodVerdict:
    """Judges the pod. `snapshot` is that for a decision about it. A pod of a `gang` waits until all of that fits."""
    request = request_of(pod, settings)
    if isinstance(request, PodVerdict):
        return request
    decision = decide_anywhere(request, snapshot)
    never = _never_enough(request, snapshot)
    decision = replace(decision, misfits={**decision.misfits, **never}) if never else decision
    fits = decision.node is not None
    refused = () if fits else grouped(decision.misfits, request.filter)
    lack = "" if gang is None else lack_of(gang, request, snapshot, alone_fits=fits)
    sentence = _though_it_fits(pod, decision) if fits else f"waits: {reasons(refused)}"
    return PodVerdict(
        sentence=f"waits: {lack}" if lack else sentence,
        request=request,
        decision=decision,
        refused=refused,
        lacks_group=fits and bool(lack),
    )


def _never_enough(request: GpuRequest, snapshot: Snapshot) -> dict[str, Misfit]:
    """Returns the closed nodes that would not do if they were open: that is the reason that matters.

    `/filter` does not judge nodes that are closed to the pod alone, so that stays their reason.
    """
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    closed = {
        name: usage
        for name, usage in snapshot.closed.items()
        if not snapshot.unregistered[name].startswith((SET_ASIDE_NODE, REFUSED_ALIKE))
    }
    found = ((name, place(request, usage, quota)) for name, usage in closed.items())
    return {name: misfit for name, misfit in found if isinstance(misfit, Misfit) and is_unresolvable(misfit)}


def reasons(refused: Sequence[Refusing]) -> str:
    """Returns `too little free memory (on 2 nodes); GPU 6 is unhealthy (on c)`, the reason that matters first."""
    if not refused:
        return "no node has GPUs"
    every = sum(len(group.nodes) for group in refused)
    parts = [f"{group.reason} ({_where(group, every)})" for group in refused[:MOST_REASONS]]
    left = len(refused) - len(parts)
    return "; ".join(parts) + (f"; and {counted(left, 'more reason')}" if left else "")


def _where(group: Refusing, every: int) -> str:
    if len(group.nodes) == 1:
        return f"on {group.nodes[0]}"
    return f"on {'all ' if len(group.nodes) == every else ''}{counted(len(group.nodes), 'node')}"


def _though_it_fits(pod: Pod, decision: Decision) -> str:
    first, *others = decision.ranked
    where = f"its GPUs fit on {counted(len(others) + 1, 'node')} now, best on {first}"
    if pod.status.unscheduled is None:
        return f"waits for scheduler {pod.spec.scheduler_name or 'default-scheduler'}, which has not tried it; {where}"
    return f"waits, though {where}"


def remarks(pod: Pod, answer: PodVerdict) -> Iterable[str]:
    """Yields sentences about the pod as it is written, and the last answer of its scheduler."""
    yield from without_effect(pod, answer.request)
    if words := set_aside_for(pod):
        yield f"{words[:1].upper()}{words[1:]}."
    refusal = pod.status.unscheduled
    if refusal is not None and refusal.message:
        scheduler = pod.spec.scheduler_name or "default-scheduler"
        yield f"The last answer of scheduler {scheduler}: {refusal.message}"
    if answer.fits:
        yield "GPUs are not what it waits for: its scheduler also looks at CPUs, memory, selectors and affinity."


def set_aside_for(pod: Pod) -> str:
    """Returns what is set aside for the pod, as the end of a sentence; empty if nothing is."""
    aside = last_set_aside(pod)
    if aside is None or pod.spec.node_name:
        return ""
    until = stamp(datetime.fromtimestamp(aside.until, UTC))
    if not aside.node:
        return f"until {until} a node was set aside for it"
    since = stamp(datetime.fromtimestamp(aside.since, UTC))
    return f"node {aside.node} is set aside for it since {since}, until {until} at the latest"


def without_effect(pod: Pod, request: GpuRequest | None) -> Iterable[str]:
    """Yields sentences about annotations of the pod that change nothing."""
    for key, near in misspelt(pod.metadata.annotations):
        yield f"The annotation {key} is unknown and has no effect. Did you mean {near}?"
    if request is not None:
        yield from (f"{each}." for each in request.policies.warnings)


def hints(answer: PodVerdict, found: Sequence[Way]) -> Iterable[str]:
    """Yields what would help a pod that fits nowhere. `found` are the evictions that would."""
    decision = answer.decision
    if decision is None or decision.node is not None:
        return
    misfits = [misfit for misfit in decision.misfits.values() if isinstance(misfit, Misfit)]
    if any(Reason.SET_ASIDE in str(each.brief) for each in decision.misfits.values()):
        yield "A node that is set aside takes pods whose activeDeadlineSeconds end before it is free."
    elif not misfits:
        yield "No node offers GPUs to it: are the node daemons running, and the nodes open?"
        return
    if not misfits:
        return
    need = misfits[0].need
    devices = [gpu.device for misfit in misfits for gpu, _ in misfit.verdicts]
    largest = max((device.memory_mib for device in devices), default=need.memory_mib)
    if need.memory_mib > largest:
        yield f"No GPU has {gib(need.memory_mib)}: the largest has {gib(largest)}. Ask for less memory."
    most = max(misfit.cards for misfit in misfits)
    if need.count > most:
        yield f"No node has {counted(need.count, 'GPU')}: the largest has {most}. Ask for fewer, or use several pods."
    found_reasons = {reason for misfit in misfits for _, reason in misfit.verdicts}
    if found_reasons and found_reasons <= {Reason.TYPE, Reason.UUID}:
        models = sorted({device.type for device in devices})
        yield f"The pod's annotations allow none of the GPUs there are: {', '.join(models)}."
    unlimited = [misfit for misfit in misfits if any(reason is Reason.LIMITS for _, reason in misfit.verdicts)]
    yield from sorted({f"{REMEDIES[misfit.unheld]}." for misfit in unlimited})
    if Reason.QUOTA in found_reasons:
        yield "The ResourceQuota of the namespace has to grow, or other pods of the namespace have to go."
    if not found and all(map(is_unresolvable, misfits)):
        yield "Deleting pods does not help: the pod would not fit on an empty node either."


def likeness_of(pod: Pod) -> bytes:
    """Returns a key that is equal for pods that get equal answers."""
    spec, refusal = pod.spec, pod.status.unscheduled
    containers = [
        (each.name, each.restart_policy, each.resources, [one for one in each.env if is_judged(one.name)])
        for each in pod.all_containers
    ]
    annotations = {
        key: value
        for key, value in pod.metadata.annotations.items()
        if key.startswith(DOMAINS) and (key == keys.SET_ASIDE or key not in keys.POD_WRITTEN_KEYS)
    }
    placed_by = spec.scheduler_name, spec.tolerations, spec.scheduling_gates, spec.affinity, spec.resources
    counted_as = pod.metadata.namespace, spec.priority_class_name, spec.active_deadline_seconds
    member = membership_of(pod)
    group = None if member is None else (member.group, member.size)
    state = pod.metadata.deletion_timestamp is None, "" if refusal is None else refusal.message
    return _encode((containers, len(spec.init_containers), annotations, placed_by, counted_as, state, group))


_encode = msgspec.msgpack.Encoder(order="sorted").encode
