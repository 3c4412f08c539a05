"""Answers `/prioritize`: how well each node suits a pod."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from proto.extender import ExtenderArgs, HostPriority, decode_extender_args, encode_host_priorities
from proto.kubernetes.objects import Node
from proto.kubernetes.requests import HostAmount, host_requested
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.pod_index import pod_name
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import decide, decide_on_empty
from scheduler_ext.decide.effort import SteppedSearch
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.score import Preference
from scheduler_ext.http.messages import HttpAnswer, HttpRequest
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest, RequestSettings, gpu_count, readable_request
from scheduler_ext.verbs.answer_log import AnswerLog, AnswerOutcome
from scheduler_ext.verbs.readiness import VerbReadiness
from scheduler_ext.verbs.turns import SearchTurns, giving_way

HIGHEST = 10
"""MaxExtenderPriority of kube-scheduler's extender/v1."""
NODES_A_STEP = 200
"""Nodes rated before other requests get their turn: about one millisecond."""


class Prioritize:
    """The verb, for pods with GPUs and for pods without. 0 for every node is no error: kube-scheduler then uses its own
    scores.
    """

    def __init__(
        self, *, cluster: Cluster, index: NodeIndex, readiness: VerbReadiness, turns: SearchTurns, log: AnswerLog
    ) -> None:
        self._cluster = cluster
        self._index = index
        self._readiness = readiness
        self._turns = turns
        self._log = log

    async def answer(self, message: HttpRequest) -> HttpAnswer:
        return await self._answered(message, self._with_gpus)

    async def answer_without_gpus(self, message: HttpRequest) -> HttpAnswer:
        return await self._answered(message, self._without_gpus)

    async def _answered(
        self, message: HttpRequest, scored: Callable[[ExtenderArgs, list[str]], Awaitable[Sequence[HostPriority]]]
    ) -> HttpAnswer:
        began = self._log.now()
        args = decode_extender_args(message.body)
        # A score costs time: each node gets one.
        names = list(dict.fromkeys(args.node_names or [node.metadata.name for node in args.nodes or ()]))
        scores = await scored(args, names)
        self._log.answered("prioritize", AnswerOutcome.OK, began)
        self._log.trace("prioritize", pod_name(args.pod), began, f"{len(scores)} nodes scored")
        return HttpAnswer(encode_host_priorities(scores))

    async def _with_gpus(self, args: ExtenderArgs, names: list[str]) -> Sequence[HostPriority]:
        request = readable_request(args.pod, self._cluster.requests)
        if request is None or (args.nodes is None and await self._readiness.wait()):
            return [HostPriority(name, 0) for name in names]
        if args.nodes is not None:
            return rank_simulated(request, args.nodes, self._cluster.requests)
        await self._turns.take(request.namespace, self._index.prepare(request, names, every=True))
        return rank(self._index, self._cluster.ledger, request, names)

    async def _without_gpus(self, args: ExtenderArgs, names: list[str]) -> Sequence[HostPriority]:
        """Returns scores if the node policy is `fgd`. Else all nodes get 0, also for a pod that requests GPUs."""
        settings = self._cluster.requests
        has_gpus = any(gpu_count(container, settings.names) for container in args.pod.all_containers)
        if has_gpus or settings.node_policy is not NodePolicy.FGD or await self._readiness.wait():
            return [HostPriority(name, 0) for name in names]
        return await giving_way(rank_without_gpus(self._index, host_requested(args.pod), names))


def rank(index: NodeIndex, ledger: Ledger, request: GpuRequest, node_names: Sequence[str]) -> list[HostPriority]:
    """Returns each node's score, as `/prioritize` answers, for a pod for which `index` is prepared.

    The pod's own reservations count as free.
    """
    if ledger.records.reserved(request.uid) is not None:
        return _scored(decide(request, ledger.snapshot(request.uid), node_names).preferences, node_names)
    return _scored(index.fitting(request, node_names, prepared=True), node_names)


def rank_without_gpus(
    index: NodeIndex, host: HostAmount, node_names: Sequence[str]
) -> SteppedSearch[list[HostPriority]]:
    """Returns scores for a pod that takes this much CPU and memory of its node, and no GPU: the more GPUs a node keeps
    usable, the higher.
    """
    levels: dict[str, int] = {}
    for start in range(0, len(node_names), NODES_A_STEP):
        levels |= index.without_gpus(host, node_names[start : start + NODES_A_STEP])
        yield
    scores = priorities_without_gpus(levels)
    return [HostPriority(name, scores[name]) for name in node_names]


def rank_simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> list[HostPriority]:
    """Returns the scores that the nodes would have if nothing ran on them."""
    fitting = decide_on_empty(request, nodes, settings).preferences
    return _scored(fitting, [node.metadata.name for node in nodes])


def _scored(fitting: Mapping[str, Preference], node_names: Sequence[str]) -> list[HostPriority]:
    """Returns the score of each node; 0 for a node that does not fit."""
    scores = priorities(fitting.values())
    return [HostPriority(name, scores.get(name, 0)) for name in node_names]


def priorities(fitting: Iterable[Preference]) -> Mapping[str, int]:
    """Returns `HIGHEST` for the best nodes in the order of `decide`, down to 1. Equally good nodes get the same."""
    steps: list[tuple[int, float]] = []
    step_of: dict[str, int] = {}
    for connection, total, name in sorted(fitting):
        if not steps or steps[-1] != (connection, total):
            steps.append((connection, total))
        step_of[name] = len(steps) - 1
    below = max(len(steps) - 1, 1)
    return {name: HIGHEST - step * (HIGHEST - 1) // below for name, step in step_of.items()}


def priorities_without_gpus(levels: Mapping[str, int]) -> Mapping[str, int]:
    """Returns `HIGHEST` for the nodes with the highest level of `fgd`, one less for each level below, down to 0."""
    best = max(levels.values(), default=0)
    return {name: max(HIGHEST - (best - level), 0) for name, level in levels.items()}
