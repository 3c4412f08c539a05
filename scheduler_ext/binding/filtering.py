"""What `/filter` answers: one node, with its GPUs reserved before anybody else can ask."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proto.extender import ExtenderArgs, FilterResult
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.scheduling.decide import Decision, decide

MOST_NODES_NAMED = 20
"""An event that lists more fitting nodes than these helps nobody and costs every `/filter` time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    result: FilterResult
    notices: tuple[Notice, ...] = ()


def passed_through(args: ExtenderArgs) -> Filtered:
    """Every node, for a pod that asks for no GPU."""
    return Filtered(result=FilterResult(node_names=args.node_names, nodes=args.nodes))


def refused(problem: str) -> Filtered:
    """No node can be named at all; kube-scheduler tries again later."""
    notice = Notice(reason="FilteringFailed", message=problem)
    return Filtered(result=FilterResult(error=problem), notices=(notice,))


def request_of(pod: Pod, settings: RequestSettings) -> GpuRequest | Filtered | None:
    """The pod's request, None without GPUs, or the refusal of a pod that cannot be read."""
    try:
        return read_request(pod, settings)
    except RequestError as error:
        return refused(str(error))


def reserve(
    ledger: Ledger, pod: Pod, request: GpuRequest, node_names: Sequence[str], *, now: float, lease_seconds: float
) -> Filtered:
    """Decides afresh among `node_names`; the decision replaces what the pod had reserved before.

    Nothing is awaited between the snapshot and the reservation, so two pods never get the same share. `now` is
    monotonic seconds.
    """
    uid = pod_key(pod)
    ledger.expire(now)
    decision = decide(request, ledger.snapshot(uid), node_names)
    if decision.error:
        ledger.forget(uid)
        return _with_warnings(request, refused(decision.error))
    if decision.node is None:
        ledger.forget(uid)
        failed = decision.failed
        notice = _no_node(failed, len(node_names))
        return _with_warnings(request, Filtered(result=FilterResult(failed_nodes=failed), notices=(notice,)))
    ledger.reserve(uid, pod, decision.node, decision.shares, now + lease_seconds)
    result = FilterResult(node_names=[decision.node])
    return _with_warnings(request, Filtered(result=result, notices=(_fits(decision, len(node_names)),)))


def simulate(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> FilterResult:
    """The best of the given nodes as if nothing ran on them; reserves nothing."""
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    decision = decide(request, ledger.snapshot(), [node.metadata.name for node in nodes])
    if decision.error:
        return FilterResult(error=decision.error)
    best = [node for node in nodes if node.metadata.name == decision.node]
    return FilterResult(nodes=best[:1], failed_nodes=decision.failed)


def _with_warnings(request: GpuRequest, answer: Filtered) -> Filtered:
    warnings = tuple(Notice(reason="UnknownPolicy", message=text, distinct=True) for text in request.policies.warnings)
    return Filtered(result=answer.result, notices=(*warnings, *answer.notices)) if warnings else answer


def _fits(decision: Decision, asked: int) -> Notice:
    scores = decision.scores
    named = scores if len(scores) <= MOST_NODES_NAMED else {str(decision.node): scores[str(decision.node)]}
    ranked = [f"{node}:{score:.2f}" for node, score in sorted(named.items(), key=lambda item: (item[1], item[0]))]
    listed = ",".join(ranked if named is scores else [*ranked, "…"])
    return Notice(
        reason="FilteringSucceed",
        message=f"find fit node({decision.node}), {asked - len(scores)} nodes not fit, "
        f"{len(scores)} nodes fit({listed})",
        warning=False,
    )


def _no_node(failed: Mapping[str, str], asked: int) -> Notice:
    """The summary, and the nodes of each reason, as one line: one event a minute tells everything."""
    nodes_by_reason: dict[str, list[str]] = defaultdict(list)
    for node, reason in failed.items():
        nodes_by_reason[reason].append(node)
    details = "; ".join(
        f"{len(nodes)} nodes {reason}({','.join(sorted(nodes))})" for reason, nodes in sorted(nodes_by_reason.items())
    )
    summary = f"no available node, {asked} nodes do not meet"
    return Notice(reason="FilteringFailed", message=f"{summary}: {details}" if details else summary)
