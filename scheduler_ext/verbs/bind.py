"""Answers `/bind`: the pod gets its node and its GPUs in one write.

`Bind` is the verb, and `Binder` runs one bind of each pod at a time. `state_machine.py` has the steps,
`bind_decision.py` finds the next event by what is known of the pod, and `bind_actions.py` does what takes time.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import NamedTuple

from program.tasks import Tasks
from proto.extender import BindingArgs, BindingResult, decode_binding_args, encode_binding_result
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import Notice
from scheduler_ext.cluster.events import LeadershipGained
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.http.messages import HttpAnswer, HttpRequest
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.answer_log import AnswerLog, AnswerOutcome
from scheduler_ext.verbs.bind_actions import BindActions, BindRun
from scheduler_ext.verbs.bind_decision import event_after_restart
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.node_locks import RETRY_SECONDS
from scheduler_ext.verbs.readiness import VerbReadiness
from scheduler_ext.verbs.state_machine import (
    AWAITED,
    BindAttempt,
    BindEffect,
    BindEvent,
    BindMachine,
    BindState,
    SentBinding,
)

log = logging.getLogger(__name__)

AT_ONCE_SECONDS = 1.0
"""A bind that comes sooner than this after a failed one of the same pod is a repetition: kube-scheduler 1.37 pauses
before it tries a single pod again, and does not for a member of a group.
"""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
_MOST_AT_ONCE = 50
_WAITING_FOR_LOCK = frozenset({BindState.QUEUED, BindState.LOCKING})


class _Failures(NamedTuple):
    """The binds of a pod that failed at once after another, and when the last one was answered."""

    repeated: int
    at: float


class Bind:
    """The verb."""

    def __init__(self, *, binder: "Binder", readiness: VerbReadiness, log: AnswerLog) -> None:
        self._binder = binder
        self._readiness = readiness
        self._log = log
        self._failed: dict[str, _Failures] = {}
        """The failures by the pod's UID."""

    async def answer(self, message: HttpRequest) -> HttpAnswer:
        began = self._log.now()
        args = decode_binding_args(message.body)
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        problem = await self._readiness.wait()
        if not problem:
            problem = await self._binder.bind(args)
            self._log.events(pod.reference(args.pod_uid), [_notice(args, problem)])
            await self._pause(args.pod_uid, failed=bool(problem), began=began)
        self._log.answered("bind", AnswerOutcome.FAILED if problem else AnswerOutcome.OK, began)
        self._log.trace("bind", pod, began, problem or f"bound to node {args.node}")
        return HttpAnswer(encode_binding_result(BindingResult(problem)))

    async def _pause(self, uid: str, *, failed: bool, began: float) -> None:
        """Waits longer before each answer that the bind failed, while kube-scheduler repeats it at once: it does for a
        member of a group, which keeps its GPUs.
        """
        known = self._failed.pop(uid, None)
        if not failed or not self._binder.holds(uid):
            return
        repeated = known.repeated + 1 if known is not None and began - known.at < AT_ONCE_SECONDS else 0
        if repeated:
            await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2.0 ** min(repeated, 10), LONGEST_PAUSE_SECONDS))
        now = self._log.now()
        self._failed = {each: other for each, other in self._failed.items() if now - other.at < AT_ONCE_SECONDS}
        self._failed[uid] = _Failures(repeated, now)


def _notice(args: BindingArgs, problem: str) -> Notice:
    if problem:
        return Notice(reason="BindingFailed", message=problem)
    message = f"Successfully binding node [{args.node}] to {args.pod_namespace}/{args.pod_name}"
    return Notice(reason="BindingSucceed", message=message, warning=False)


class Binder:
    """Binds pods to nodes, and checks the outcome of Bindings without an answer."""

    def __init__(
        self,
        *,
        cluster: LiveCluster,
        actions: BindActions,
        settings: ServeSettings,
        lock_waited: Callable[[float], None],
        files: JournalFiles | None = None,
    ) -> None:
        """`lock_waited` gets the seconds that each bind waited for its node's lock, also without success. `files` are
        for the next process.
        """
        self._cluster = cluster
        self._actions = actions
        self._settings = settings
        self._lock_waited = lock_waited
        self._machine = BindMachine(state=cluster.state, settings=settings, monotonic=cluster.monotonic, files=files)
        self._left = list(files.left) if files is not None else []
        """Bindings that the previous process sent and that may still be carried out."""
        self._runs: dict[PodName, BindRun] = {}
        """Binds that kube-scheduler waits for."""
        self._binds, self._checks = Tasks(), Tasks()

    async def bind(self, args: BindingArgs) -> str:
        """Binds the pod. Returns an empty text when it is bound, else one sentence. A repeated call joins the first
        one.
        """
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        run = self._runs.get(pod)
        if run is None:
            run = self._runs[pod] = BindRun(self._machine.begin(pod, args.pod_uid, args.node))
            self._binds.begin(self._bind(run))
        elif run.attempt.node != args.node or args.pod_uid not in ("", run.attempt.uid):
            return f"pod {pod} cannot be bound to node {args.node}: its bind to node {run.attempt.node} is under way"
        return await asyncio.shield(run.answer)

    @property
    def under_way(self) -> Collection[PodName]:
        """Returns the pods that are being bound, always those of now."""
        return self._runs.keys()

    def holds(self, uid: str) -> bool:
        """Returns whether the pod keeps its GPUs, as a member of a group does whose bind failed."""
        return self._cluster.state.ledger.records.reserved(uid) is not None

    async def drop_reservations(self) -> None:
        """Drops reservations once the binds under way have finished, except those whose Binding may still be carried
        out.
        """
        await self._answered()
        self._cluster.apply(LeadershipGained())

    async def recover(self) -> None:
        """Holds the GPUs of each Binding that the previous process sent, until its outcome is known."""
        logged = ""
        while self._left:
            try:
                await asyncio.gather(*(self._recover(sent) for sent in self._left[-_MOST_AT_ONCE:]))
                del self._left[-_MOST_AT_ONCE:]
            except (ApiError, ApiUnreachable) as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("the outcome of %d Bindings is not known yet: %s", len(self._left), logged)
                await asyncio.sleep(RETRY_SECONDS)

    def forget_sent(self) -> None:
        """Forgets every Binding: another process may have had the turn to write Bindings since anything was
        sent from here.
        """
        self._left.clear()
        self._machine.forget_sent()

    async def finish(self) -> None:
        """Lets the binds under way finish; each has its own deadline. The next process takes over what is then
        unanswered.
        """
        await self._answered()
        await self._checks.end()
        await self._binds.end(self._settings.bind_deadline_seconds)

    async def _answered(self) -> None:
        for run in [*self._runs.values()]:
            await asyncio.shield(run.answer)

    async def _bind(self, run: BindRun) -> None:
        with run.turn:
            try:
                await self._to_its_end(run)
            except Exception as error:
                log.exception("pod %s: its bind broke off", run.attempt.pod)
                run.break_off(error)
            finally:
                del self._runs[run.attempt.pod]
                if not run.answer.done():
                    # The GPUs are held until the lease ends.
                    run.answer.set_result(self._failure(run))
                    if run.attempt.locked:
                        self._perform(run, BindEffect.UNLOCK)

    async def _to_its_end(self, run: BindRun) -> None:
        action: BindEffect | None = BindEffect.DECIDE
        seconds = self._settings.bind_deadline_seconds
        try:
            async with asyncio.timeout(seconds):
                while action is not None:
                    action = self._step(run, await self._actions.performed(run, action))
        except TimeoutError:
            run.problem = f"not done within {seconds:g} s: {run.doing}"
            self._step(run, BindEvent.CUT_OFF)

    async def _recover(self, sent: SentBinding) -> None:
        """Recovers one Binding. Raises ApiError or ApiUnreachable."""
        run = BindRun(self._machine.left_behind(sent))
        pod, now = await self._actions.found(run.attempt), self._cluster.monotonic()
        until = self._settings.held_until(now, 0.0)
        self._step(run, event_after_restart(self._cluster.state, run.attempt, pod, now=now, until=until))

    async def _settle(self, run: BindRun) -> None:
        self._step(run, await self._actions.settled(run.attempt, self.under_way))

    def _step(self, run: BindRun, event: BindEvent) -> BindEffect | None:
        """Performs what is immediate. Returns the action that leads to the bind's next event; None at the end of the
        bind.
        """
        before = run.attempt.state
        run.attempt, effects, problem = self._machine.after(run.attempt, event)
        run.problem = problem or run.problem
        now = run.attempt.state
        if before in _WAITING_FOR_LOCK and now not in _WAITING_FOR_LOCK:
            self._lock_waited(self._cluster.monotonic() - run.waits_since)
        if now is BindState.WRITING and before is not BindState.SENDING:
            run.doing = "the API server did not accept the Binding"
        action = None
        for effect in effects:
            if effect in AWAITED:
                action = effect
            else:
                self._perform(run, effect)
        return action

    def _perform(self, run: BindRun, effect: BindEffect) -> None:
        match effect:
            case BindEffect.ANSWER:
                run.answer.set_result("" if run.attempt.state is BindState.BOUND else self._failure(run))
            case BindEffect.UNLOCK:
                self._binds.begin(self._unlock(run.attempt, run.turn.pop_all()))
            case BindEffect.CHECK_LATER:
                self._checks.begin(self._settle(run))

    async def _unlock(self, attempt: BindAttempt, turn: ExitStack) -> None:
        """Removes the lock before the next turn on the node: the pod's own next bind would take the lock for its own,
        and lose it.
        """
        with turn:
            await self._actions.unlock(attempt)

    def _failure(self, run: BindRun) -> str:
        attempt = run.attempt
        sentence = f"pod {attempt.pod} cannot be bound to node {attempt.node}: {run.problem}"
        led = self._cluster.state.history.line(attempt.uid, self._cluster.monotonic())
        log.warning("%s; what led to it: %s", sentence, led)
        return sentence
