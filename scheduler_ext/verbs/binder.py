"""Performs what the machine of `step` requests: one run for each bind, and the checks of unanswered Bindings."""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack

from program.tasks import Tasks
from proto.extender import BindingArgs
from proto.kubernetes.errors import ApiError, ApiUnreachable
from scheduler_ext.cluster.events import LeadershipGained
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.attempts import Attempts, Progress, Sent
from scheduler_ext.verbs.bind_actions import RETRY_SECONDS, BindActions, Run
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.state_machine import AWAITED, BindAttempt, BindEffect, BindEvent, BindState

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 50
_WAITING_FOR_LOCK = frozenset({BindState.QUEUED, BindState.LOCKING})


class Binder:
    """Binds pods to nodes; each bind runs at most once at a time."""

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
        self._attempts = Attempts(
            state=cluster.state,
            apply=cluster.apply,
            monotonic=cluster.monotonic,
            settings=settings,
            files=files,
        )
        self._left = list(files.left) if files is not None else []
        """Bindings that the previous process sent and that may still be carried out."""
        self._runs: dict[PodName, Run] = {}
        """Binds that kube-scheduler waits for."""
        self._binds, self._checks = Tasks(), Tasks()

    async def bind(self, args: BindingArgs) -> str:
        """Binds the pod. Returns an empty text when it is bound, else one sentence. A repeated call joins the first
        one.
        """
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        run = self._runs.get(pod)
        if run is None:
            run = self._runs[pod] = self._actions.begin(self._attempts.begin(pod, args.pod_uid, args.node))
            self._binds.begin(self._bind(run))
        elif run.attempt.node != args.node or args.pod_uid not in ("", run.attempt.uid):
            return f"pod {pod} cannot be bound to node {args.node}: its bind to node {run.attempt.node} is under way"
        await run.answered.wait()
        return run.answer

    @property
    def under_way(self) -> Collection[PodName]:
        """Returns the pods that are being bound, always those of now."""
        return self._runs.keys()

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
        self._attempts.forget_sent()

    async def finish(self) -> None:
        """Lets the binds under way finish; each has its own deadline. The next process takes over what is then
        unanswered.
        """
        await self._answered()
        await self._checks.end()
        await self._binds.end(self._settings.bind_deadline_seconds)

    async def _answered(self) -> None:
        for run in [*self._runs.values()]:
            await run.answered.wait()

    async def _bind(self, run: Run) -> None:
        async with run.turn:
            try:
                await self._to_its_end(run)
            except Exception as error:
                log.exception("pod %s: its bind broke off", run.attempt.pod)
                run.problem = f"internal error, see the log: {error!r}"
            finally:
                del self._runs[run.attempt.pod]
                if not run.answered.is_set():
                    self._break_off(run)

    async def _to_its_end(self, run: Run) -> None:
        action: BindEffect | None = BindEffect.DECIDE
        try:
            async with asyncio.timeout_at(run.deadline):
                while action is not None:
                    action = self._step(run, await self._actions.performed(run, action))
        except TimeoutError:
            run.problem = f"not done within {self._settings.bind_deadline_seconds:g} s: {run.doing}"
            self._step(run, BindEvent.CUT_OFF)

    def _break_off(self, run: Run) -> None:
        """Answers kube-scheduler, and releases the node's lock. The GPUs are held until the lease ends."""
        self._answer(run, self._failure(run))
        if run.attempt.locked:
            self._perform(run, BindEffect.UNLOCK)

    def _step(self, run: Run, event: BindEvent) -> BindEffect | None:
        """Performs what is immediate. Returns the action that leads to the bind's next event; None at the end of the
        bind.
        """
        return self._go_on(run, self._attempts.after(run.attempt, event))

    def _go_on(self, run: Run, progress: Progress) -> BindEffect | None:
        before = run.attempt.state
        run.attempt, left, problem = progress
        run.problem = problem or run.problem
        now = run.attempt.state
        if before in _WAITING_FOR_LOCK and now not in _WAITING_FOR_LOCK:
            self._lock_waited(self._cluster.monotonic() - run.waits_since)
        if now is BindState.WRITING and before is not BindState.SENDING:
            run.doing = "the API server did not accept the Binding"
        action = None
        for effect in left:
            if effect in AWAITED:
                action = effect
            else:
                self._perform(run, effect)
        return action

    def _perform(self, run: Run, effect: BindEffect) -> None:
        match effect:
            case BindEffect.ANSWER:
                self._answer(run, "" if run.attempt.state is BindState.BOUND else self._failure(run))
            case BindEffect.UNLOCK:
                self._binds.begin(self._unlock(run.attempt, run.turn.pop_all()))
            case BindEffect.CHECK_LATER:
                self._checks.begin(self._settle(run))

    async def _unlock(self, attempt: BindAttempt, turn: AsyncExitStack) -> None:
        """Removes the lock before the next turn on the node: the pod's own next bind would take the lock for its own,
        and lose it.
        """
        async with turn:
            await self._actions.unlock(attempt)

    def _answer(self, run: Run, sentence: str) -> None:
        run.answer = sentence
        run.answered.set()

    def _failure(self, run: Run) -> str:
        attempt = run.attempt
        sentence = f"pod {attempt.pod} cannot be bound to node {attempt.node}: {run.problem}"
        log.warning("%s; what led to it: %s", sentence, self._actions.history(attempt))
        return sentence

    async def _recover(self, sent: Sent) -> None:
        """Recovers one Binding. Raises ApiError or ApiUnreachable."""
        run = self._actions.begin(self._attempts.left_behind(sent))
        pod = await self._actions.found(run.attempt)
        self._go_on(run, self._attempts.recovered(run.attempt, pod))

    async def _settle(self, run: Run) -> None:
        self._step(run, await self._actions.checked(run.attempt, self.under_way))
