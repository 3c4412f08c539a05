"""Answers `/bind`: the pod gets its node and its GPUs in one write."""

from collections.abc import Awaitable, Callable

from proto.extender import BindingArgs, BindingResult, decode_binding_args, encode_binding_result
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import ObjectReference
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.http.messages import HttpAnswer, HttpRequest
from scheduler_ext.verbs.answer_log import AnswerLog, AnswerOutcome
from scheduler_ext.verbs.readiness import VerbReadiness


class Bind:
    """The verb. `bound` binds the pod and returns why that failed; empty if it did not."""

    def __init__(
        self, *, bound: Callable[[BindingArgs], Awaitable[str]], readiness: VerbReadiness, log: AnswerLog
    ) -> None:
        self._bound = bound
        self._readiness = readiness
        self._log = log

    async def answer(self, message: HttpRequest) -> HttpAnswer:
        began = self._log.now()
        args = decode_binding_args(message.body)
        problem = await self._readiness.wait()
        if not problem:
            problem = await self._bound(args)
            self._log.events(_reference(args), [_notice(args, problem)])
        self._log.answered("bind", AnswerOutcome.FAILED if problem else AnswerOutcome.OK, began)
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        self._log.trace("bind", pod, began, problem or f"bound to node {args.node}")
        return HttpAnswer(encode_binding_result(BindingResult(problem)))


def _reference(args: BindingArgs) -> ObjectReference:
    return ObjectReference(
        api_version="v1", kind="Pod", name=args.pod_name, namespace=args.pod_namespace, uid=args.pod_uid
    )


def _notice(args: BindingArgs, problem: str) -> Notice:
    if problem:
        return Notice(reason="BindingFailed", message=problem)
    message = f"Successfully binding node [{args.node}] to {args.pod_namespace}/{args.pod_name}"
    return Notice(reason="BindingSucceed", message=message, warning=False)
