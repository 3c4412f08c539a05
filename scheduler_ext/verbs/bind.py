"""Answers `/bind`: the pod gets its node and its GPUs in one write."""

import asyncio
from collections.abc import Awaitable, Callable

from proto.extender import BindingArgs, BindingResult, decode_binding_args, encode_binding_result
from proto.kubernetes.objects import Notice
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.http.messages import HttpAnswer, HttpRequest
from scheduler_ext.verbs.answer_log import AnswerLog, AnswerOutcome
from scheduler_ext.verbs.readiness import VerbReadiness

AT_ONCE_SECONDS = 1.0
"""A bind that comes sooner than this after a failed one of the same pod is a repetition: kube-scheduler 1.37 pauses
before it tries a single pod again, and does not for a member of a group.
"""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class Bind:
    """The verb. `bound` binds the pod and returns why that failed; empty if it did not."""

    def __init__(
        self,
        *,
        bound: Callable[[BindingArgs], Awaitable[str]],
        held: Callable[[str], bool],
        readiness: VerbReadiness,
        log: AnswerLog,
    ) -> None:
        """`held` returns whether the pod of this UID keeps its GPUs, as a member of a group does whose bind failed."""
        self._bound = bound
        self._held = held
        self._readiness = readiness
        self._log = log
        self._failed: dict[str, tuple[int, float]] = {}
        """By UID the number of binds that failed one after the other, and when the last one was answered."""

    async def answer(self, message: HttpRequest) -> HttpAnswer:
        began = self._log.now()
        args = decode_binding_args(message.body)
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        problem = await self._readiness.wait()
        if not problem:
            problem = await self._bound(args)
            self._log.events(pod.reference(args.pod_uid), [_notice(args, problem)])
            await self._pause(args.pod_uid, failed=bool(problem), began=began)
        self._log.answered("bind", AnswerOutcome.FAILED if problem else AnswerOutcome.OK, began)
        self._log.trace("bind", pod, began, problem or f"bound to node {args.node}")
        return HttpAnswer(encode_binding_result(BindingResult(problem)))

    async def _pause(self, uid: str, *, failed: bool, began: float) -> None:
        """Waits longer before each answer that the bind failed, while kube-scheduler repeats it at once."""
        number, at = self._failed.pop(uid, (0, began - AT_ONCE_SECONDS))
        if not failed or not self._held(uid):
            return
        number = number + 1 if began - at < AT_ONCE_SECONDS else 0
        if number:
            await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2.0 ** min(number, 10), LONGEST_PAUSE_SECONDS))
        now = self._log.now()
        self._failed = {each: known for each, known in self._failed.items() if now - known[1] < AT_ONCE_SECONDS}
        self._failed[uid] = number, now


def _notice(args: BindingArgs, problem: str) -> Notice:
    if problem:
        return Notice(reason="BindingFailed", message=problem)
    message = f"Successfully binding node [{args.node}] to {args.pod_namespace}/{args.pod_name}"
    return Notice(reason="BindingSucceed", message=message, warning=False)
