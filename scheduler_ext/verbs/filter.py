"""Answers `/filter`: the best node or a few of them, with the GPUs reserved before the next request is answered."""

from collections.abc import Callable, Collection, Sequence

from proto.extender import ExtenderArgs, FilterResult, decode_extender_args, encode_filter_result
from proto.kubernetes.objects import Notice, Pod
from scheduler_ext.cluster.events import Explained, PodRefused
from scheduler_ext.cluster.pod_index import PodName, pod_name
from scheduler_ext.http.messages import HttpAnswer, HttpRequest
from scheduler_ext.membership import group_of
from scheduler_ext.requests import GpuRequest, RequestError, pod_key, read_request
from scheduler_ext.verbs.answer_log import AnswerLog, AnswerOutcome
from scheduler_ext.verbs.filter_decision import (
    FilterAnswer,
    FilterDecision,
    passed_through,
    refused,
    simulate,
    unresolvable,
)
from scheduler_ext.verbs.readiness import VerbReadiness
from scheduler_ext.verbs.turns import SearchTurns


class Filter:
    """The verb. `under_way` are the pods that are being bound; `no_room` gets a pod without a node, and the nodes where
    evictions may help.
    """

    def __init__(
        self,
        *,
        decision: FilterDecision,
        readiness: VerbReadiness,
        turns: SearchTurns,
        under_way: Collection[PodName],
        no_room: Callable[[Pod, GpuRequest, Collection[str]], None],
        log: AnswerLog,
    ) -> None:
        self._decision = decision
        self._cluster = decision.cluster
        self._readiness = readiness
        self._turns = turns
        self._under_way = under_way
        self._no_room = no_room
        self._log = log

    async def answer(self, message: HttpRequest) -> HttpAnswer:
        began = self._log.now()
        args = decode_extender_args(message.body)
        answer = await self._answer(args)

        def afterwards() -> None:
            self._record(args.pod, answer, began)

        return HttpAnswer(encode_filter_result(args.as_written(answer.result)), afterwards=afterwards)

    async def _answer(self, args: ExtenderArgs) -> FilterAnswer:
        try:
            request = read_request(args.pod, self._cluster.requests)
        except RequestError as error:
            if args.nodes is None:
                self._cluster.apply(PodRefused(args.pod, None), self._log.now())
            return unresolvable(str(error), args)
        if args.nodes is None and args.node_names is None:
            return FilterAnswer(result=FilterResult(error="neither Nodes nor NodeNames are given"))
        if request is None:
            return passed_through(args)
        if args.nodes is not None:
            return FilterAnswer(result=simulate(request, args.nodes, self._cluster.requests))
        node_names = args.node_names or []
        if not await self._readiness.wait():
            closed, index = self._cluster.closed_to(args.pod), self._decision.index
            open_ = [name for name in node_names if name not in closed] if closed else node_names
            if group_of(args.pod) and (request.wish is not None or index.has_domains()):
                await self._turns.take(request.namespace, index.prepare_rooms(request, open_))
            await self._turns.take(request.namespace, index.prepare(request, open_))
        return self._decided(args.pod, request, node_names)

    def _decided(self, pod: Pod, request: GpuRequest, node_names: Sequence[str]) -> FilterAnswer:
        """Nothing is awaited from the last look at what is known to the reservation."""
        problem = self._readiness.problem()
        if problem:
            return FilterAnswer(result=FilterResult(error=problem))
        if pod_name(pod) in self._under_way:
            return refused("the pod is being bound at this moment")
        answer = self._decision.reserve(pod, request, node_names, self._log.now())
        if answer.choice is not None and not answer.result.node_names:
            self._no_room(pod, request, answer.result.failed_nodes or ())
        return answer

    def _record(self, pod: Pod, answer: FilterAnswer, began: float) -> None:
        """Does what can be done after the answer is sent."""
        result, choice, notices = answer.result, answer.choice, answer.notices()
        fits = bool(result.node_names or result.nodes)
        outcome = AnswerOutcome.OK if fits else AnswerOutcome.FAILED if result.error else AnswerOutcome.REFUSED
        self._log.answered("filter", outcome, began)
        if choice is not None:
            if outcome is AnswerOutcome.REFUSED:
                self._log.misfits(result)
            offered = len(result.node_names or ()) if answer.offers else 0
            words = f"{offered} nodes fit, kube-scheduler chooses" if offered else notices[-1].message
            self._cluster.apply(Explained(pod_key(pod), words), self._log.now())
            self._decision.index.look_ahead()
        self._log.events(pod.reference, notices)
        gang = self._cluster.gang_of(pod) if choice is not None and choice.group else None
        if choice is not None and gang is not None and gang.reference is not None:
            self._log.events(gang.reference, [Notice(reason="GroupDoesNotFit", message=choice.group)])
        fitting = result.node_names if result.node_names is not None else result.nodes
        words = "; ".join(notice.message for notice in notices)
        self._log.trace(
            "filter", pod_name(pod), began, words or result.error or f"{len(fitting or ())} nodes are offered"
        )
