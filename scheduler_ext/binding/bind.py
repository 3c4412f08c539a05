"""The order of a bind: find the decision, take the lock where one is needed, write the Binding, undo on failure."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

from proto.annotations.bind_phase import BindPhase
from proto.devices import PodShares
from proto.extender import BindingArgs
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound, ServerError, TooManyRequests
from proto.kubernetes.objects import NODES, PODS, Pod
from scheduler_ext.binding.attempt import Attempt
from scheduler_ext.binding.live import LiveCluster
from scheduler_ext.binding.node_locks import LockBusy, NodeLocks, NodeUnknown
from scheduler_ext.binding.sending import Sending
from scheduler_ext.binding.sent_files import Sent, SentFiles
from scheduler_ext.binding.write import binding_of
from scheduler_ext.cluster.events import BindBegan, BindEnded, Decided, Dropped, NodeChosen, TimePassed
from scheduler_ext.cluster.facts import NodeFacts, PodName, node_facts
from scheduler_ext.requests import RequestError, pod_key, read_request
from scheduler_ext.scheduling.decide import decide
from scheduler_ext.scheduling.kept_rooms import in_that_of_others
from scheduler_ext.settings import ServeSettings

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_MANY_SENT = 1000
"""Bindings remembered before those are looked for that are settled."""
_MOST_AT_ONCE = 50


class BindRefused(Exception):
    """The pod stays unbound; the message is the sentence for kube-scheduler."""


class Binder:
    """Binds pods to nodes, each bind at most once at a time."""

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: LiveCluster,
        settings: ServeSettings,
        sending: Sending,
        now: Callable[[], datetime],
        forbidden: Callable[[], Awaitable[str]],
        lock_waited: Callable[[float], None],
        files: SentFiles | None = None,
    ) -> None:
        """`forbidden` is asked before each write, and says why somebody else decides by now, if so. `lock_waited` is
        told the seconds that each bind waited for its node's lock, in vain too. `files` are for the next process.
        """
        self._api = api
        self._cluster = cluster
        self._ledger = cluster.state.ledger
        self._settings = settings
        self._sending = sending
        self._now = now
        self._monotonic = cluster.monotonic
        self._forbidden = forbidden
        self._lock_waited = lock_waited
        self._files = files
        self._left = list(files.left) if files is not None else []
        """What the process before sent from here, and may still be carried out."""
        ttl = timedelta(seconds=settings.node_lock_ttl_seconds)
        self._locks = NodeLocks(api=api, cluster=cluster, now=now, ttl=ttl)
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._under_way: dict[PodName, tuple[BindingArgs, asyncio.Task[str]]] = {}
        self._undoing: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._sent: dict[str, Attempt] = {}
        """Who sent the last Binding for a pod, by UID; without meaning once the pod's reservation is gone."""

    async def bind(self, args: BindingArgs) -> str:
        """Empty once the pod is bound to the node, else one sentence; a repeated call joins the first one."""
        pod = PodName(namespace=args.pod_namespace, name=args.pod_name)
        first, task = self._under_way.get(pod, (None, None))
        if first is not None and first != args:
            return f"pod {pod} cannot be bound to node {args.node}: its bind to node {first.node} is under way"
        if task is None:
            task = asyncio.create_task(self._bind_in_time(pod, args))
            self._under_way[pod] = (args, task)
            task.add_done_callback(lambda _: self._under_way.pop(pod, None))
        return await asyncio.shield(task)

    def is_binding(self, pod: PodName) -> bool:
        return pod in self._under_way

    def sent_to(self, uid: str) -> str:
        """The node to which the pod may be bound by now though the watch has not shown it; empty for any other pod."""
        self._cluster.apply(TimePassed())
        sent, reservation = self._sent.get(uid), self._ledger.reservation(uid)
        if sent is None:
            return ""
        if reservation is not None and reservation.node == sent.node:
            return sent.node
        # What it sent is settled; the next reservation, though for the same node, is none of its business.
        del self._sent[uid]
        return ""

    async def drop_reservations(self) -> None:
        """Once the binds under way have finished, except those whose Binding the API server may carry out yet."""
        await self._finish_binds()
        for uid in self._ledger.holdings():
            if not self.sent_to(uid):
                self._cluster.apply(Dropped(uid))

    async def recover(self) -> None:
        """Holds the GPUs of each Binding that the process before sent, until it is known what became of it."""
        said = ""
        while self._left:
            try:
                await asyncio.gather(*(self._recover(sent) for sent in self._left[-_MOST_AT_ONCE:]))
                del self._left[-_MOST_AT_ONCE:]
            except (ApiError, ApiUnreachable) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("it is not known yet what became of %d Bindings: %s", len(self._left), said)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _recover(self, sent: Sent) -> None:
        """Raises ApiError or ApiUnreachable."""
        attempt = Attempt(pod=sent.pod, uid=sent.uid, node=sent.node, uncertain=True)
        try:
            pod = await self._pod(attempt)
        except BindRefused:
            pod = None
        if pod is None or pod.spec.node_name:
            self._cross_out(sent.uid)
            return
        self._cluster.apply(Decided(sent.uid, pod, sent.node, sent.shares, self._until(0.0)))
        self._remember(attempt)
        self._undo(attempt)

    async def finish(self) -> None:
        """Lets the binds under way finish; each has a deadline of its own. Nothing is settled any more after that."""
        await self._finish_binds()
        for settling in self._settling:
            settling.cancel()
        await asyncio.gather(*self._undoing, *self._settling, return_exceptions=True)

    async def _finish_binds(self) -> None:
        await asyncio.gather(*(task for _, task in self._under_way.values()), return_exceptions=True)

    async def _bind_in_time(self, pod: PodName, args: BindingArgs) -> str:
        uncertain = self.sent_to(args.pod_uid) == args.node
        attempt = Attempt(pod=pod, uid=args.pod_uid, node=args.node, uncertain=uncertain)
        seconds = self._settings.bind_deadline_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._bind(attempt)
            self._cross_out(attempt.uid)
            return ""
        except TimeoutError:
            problem = f"not done within {seconds:g} s: {attempt.doing}"
        except NodeUnknown:
            problem = "there is no such node"
        except (BindRefused, ApiError, ApiUnreachable) as error:
            problem = str(error)
        self._undo(attempt)
        self._cluster.apply(BindEnded(attempt.uid, f"its bind to node {args.node} was refused"))
        story = self._cluster.state.stories.line(attempt.uid, self._monotonic())
        log.warning("pod %s cannot be bound to node %s: %s; what led there: %s", pod, args.node, problem, story)
        return f"pod {pod} cannot be bound to node {args.node}: {problem}"

    async def _bind(self, attempt: Attempt) -> None:
        known = self._cluster.state.facts.pod(attempt.pod)
        if known is not None and known.node and known.uid == attempt.uid:
            self._confirm(attempt, known.node)
            return
        node = await self._node(attempt.node)
        shares = self._reserved(attempt)
        if shares is None:
            pod = await self._pod(attempt)
            if pod.spec.node_name:
                self._confirm(attempt, pod.spec.node_name)
                return
            shares = self._reserved(attempt) or self._decide_again(attempt, pod)
        self._cluster.apply(BindBegan(attempt.uid, self._until(self._settings.reservation_lease_seconds)))
        if shares is None or node.slots:
            await self._write(attempt, shares, BindPhase.SUCCESS)
        else:
            await self._write_locked(attempt, shares)
        self._cluster.apply(BindBegan(attempt.uid, self._until(self._settings.bound_lease_seconds)))

    async def _write_locked(self, attempt: Attempt, shares: PodShares) -> None:
        """One pod of the node at a time: each waits until the one before has its devices."""
        queue = self._queues.setdefault(attempt.node, asyncio.Lock())
        since, give_up_at = self._monotonic(), self._now() + timedelta(seconds=self._settings.lock_wait_seconds)
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self._turn(attempt, queue))
                attempt.lock_wanted = True
                await self._take_lock(attempt, give_up_at)
            finally:
                self._lock_waited(self._monotonic() - since)
            await self._write(attempt, shares, BindPhase.ALLOCATING)

    @asynccontextmanager
    async def _turn(self, attempt: Attempt, queue: asyncio.Lock) -> AsyncIterator[None]:
        """Raises BindRefused when it does not come in time."""
        attempt.doing = "other pods are being bound to it one after the other"
        try:
            async with asyncio.timeout(self._settings.lock_wait_seconds):
                await queue.acquire()
        except TimeoutError as error:
            raise BindRefused(f"{attempt.doing}; waited {self._settings.lock_wait_seconds:g} s") from error
        try:
            yield
        finally:
            queue.release()

    async def _take_lock(self, attempt: Attempt, give_up_at: datetime) -> None:
        """Raises BindRefused when another pod holds it for too long."""

        def waiting(why: str) -> None:
            attempt.doing = why

        try:
            await self._locks.take(attempt.node, attempt.pod, attempt.uid, waiting, give_up_at=give_up_at)
        except LockBusy as error:
            raise BindRefused(f"{error}; waited {self._settings.lock_wait_seconds:g} s") from error

    def _confirm(self, attempt: Attempt, node: str) -> None:
        """For a pod that already has a node. Raises BindRefused if it is another one."""
        attempt.uncertain = False
        if node != attempt.node:
            raise BindRefused(f"it is already bound to node {node}" if node else "the API server refused the Binding")

    async def _node(self, name: str) -> NodeFacts:
        """The watch may not have shown a young node yet."""
        facts = self._cluster.state.facts.node(name)
        if facts is not None:
            return facts
        try:
            return node_facts(await self._api.get(NODES, name))
        except NotFound as error:
            raise NodeUnknown(name) from error

    def _reserved(self, attempt: Attempt) -> PodShares | None:
        """What `/filter` decided for this node."""
        self._cluster.apply(NodeChosen(attempt.uid, attempt.node))
        reservation = self._ledger.reservation(attempt.uid)
        return None if reservation is None else reservation.on(attempt.node)

    def _decide_again(self, attempt: Attempt, pod: Pod) -> PodShares | None:
        """Reserves on this one node; None for a pod without GPUs. Raises BindRefused when it does not fit any more."""
        try:
            request = read_request(pod, self._cluster.state.requests)
        except RequestError as error:
            raise BindRefused(str(error)) from error
        if request is None:
            return None
        sent_to = self.sent_to(attempt.uid)
        if sent_to:
            raise BindRefused(f"its Binding to node {sent_to} may have been written already")
        exceeded = self._ledger.refused_by_kubelet(pod, [attempt.node]).get(attempt.node)
        if exceeded:
            raise BindRefused(f"kubelet would refuse it: the node's pods ask for more {exceeded} than the Node has")
        decision = decide(request, self._ledger.snapshot(attempt.uid), [attempt.node])
        if decision.node is None:
            priority = pod.spec.priority or 0
            decision = (
                in_that_of_others(self._cluster.state, request, priority, [attempt.node], self._monotonic()) or decision
            )
        if decision.node is None:
            why = decision.error or decision.failed.get(attempt.node, "the pod does not fit")
            raise BindRefused(f"it has no reservation there and does not fit: {why}")
        until = self._until(self._settings.reservation_lease_seconds)
        self._cluster.apply(Decided(attempt.uid, pod, attempt.node, decision.shares, until))
        return decision.shares

    def _until(self, lease_seconds: float) -> float:
        """For as long as this bind can take, and the lease beyond."""
        return self._monotonic() + self._settings.bind_deadline_seconds + lease_seconds

    async def _pod(self, attempt: Attempt) -> Pod:
        """The live pod. Fills in its uid when the caller gave none. Raises BindRefused if it is not the one meant."""
        try:
            pod = await self._api.get(PODS, attempt.pod.name, attempt.pod.namespace)
        except NotFound as error:
            attempt.uncertain = False
            raise BindRefused("the pod is gone") from error
        if attempt.uid and pod.metadata.uid != attempt.uid:
            attempt.uncertain = False
            raise BindRefused(f"the pod was created anew, uid {attempt.uid} is gone")
        if pod.metadata.deletion_timestamp:
            attempt.uncertain = attempt.uncertain and bool(pod.spec.node_name)
            raise BindRefused("the pod is being deleted")
        attempt.uid = attempt.uid or pod_key(pod)
        return pod

    async def _write(self, attempt: Attempt, shares: PodShares | None, phase: BindPhase) -> None:
        """Again until the API server answers. Writing twice does no harm: the second conflicts with the first."""
        binding = binding_of(attempt.pod, attempt.uid, attempt.node, shares, self._now(), phase=phase)
        attempt.doing = "the API server has not taken the Binding"
        if shares is not None:
            self._remember(attempt)
            self._write_down(attempt, shares)
        while True:
            problem = await self._forbidden()
            if problem:
                raise BindRefused(problem)
            uncertain, attempt.uncertain = attempt.uncertain, True
            pause_seconds = _RETRY_SECONDS
            try:
                return await self._sending.send(binding)
            except ApiUnreachable as error:
                attempt.doing = str(error)
            except Conflict as error:
                attempt.doing = str(error)
                return self._confirm(attempt, (await self._pod(attempt)).spec.node_name)
            except NotFound as error:
                attempt.uncertain = False
                raise BindRefused("the pod is gone") from error
            except (ServerError, TooManyRequests) as error:
                attempt.doing = str(error)
                if isinstance(error, TooManyRequests):
                    # Turned away at the door: nothing was written.
                    attempt.uncertain = uncertain
                pause_seconds = max(pause_seconds, error.retry_after_seconds or 0)
            except ApiError:
                attempt.uncertain = uncertain
                raise
            await asyncio.sleep(pause_seconds)

    def _remember(self, attempt: Attempt) -> None:
        if len(self._sent) >= _MANY_SENT:
            self._sent = {uid: sent for uid, sent in self._sent.items() if self._ledger.reservation(uid) is not None}
        self._sent[attempt.uid] = attempt

    def _write_down(self, attempt: Attempt, shares: PodShares) -> None:
        """Raises BindRefused: were this process killed, nobody would know of the Binding."""
        if self._files is None:
            return
        try:
            self._files.add(Sent(attempt.pod, attempt.uid, attempt.node, shares))
        except OSError as error:
            raise BindRefused(f"the Binding cannot be written down before it is sent: {error.strerror}") from error

    def _cross_out(self, uid: str) -> None:
        if self._files is not None:
            self._files.remove(uid)

    def _undo(self, attempt: Attempt) -> None:
        """Gives back reservation and lock, except where the Binding may have been written after all."""
        if not attempt.uncertain:
            self._cross_out(attempt.uid)
        reservation = self._ledger.reservation(attempt.uid)
        if reservation is not None and reservation.node == attempt.node:
            if attempt.uncertain:
                self._cluster.apply(BindBegan(attempt.uid, self._until(self._settings.bound_lease_seconds)))
                _start(self._settle(attempt), self._settling)
            else:
                self._cluster.apply(Dropped(attempt.uid))
        if attempt.lock_wanted:
            _start(self._release(attempt), self._undoing)

    async def _settle(self, attempt: Attempt) -> None:
        """Looks what became of a Binding whose answer was lost, and gives the GPUs back if the pod is not there."""
        while self._is_open(attempt):
            await asyncio.sleep(self._settings.settle_seconds)
            try:
                pod = await self._api.get(PODS, attempt.pod.name, attempt.pod.namespace)
            except NotFound:
                pass
            except (ApiError, ApiUnreachable):
                continue
            else:
                if pod.metadata.uid == attempt.uid and pod.spec.node_name == attempt.node:
                    # The watch shows it, and until then it is held from memory.
                    self._cross_out(attempt.uid)
                    return
            # A bind that has begun meanwhile knows better.
            if self._is_open(attempt) and not self.is_binding(attempt.pod):
                self._cluster.apply(Dropped(attempt.uid))
                self._cross_out(attempt.uid)
                log.info("pod %s was not bound to node %s after all", attempt.pod, attempt.node)

    def _is_open(self, attempt: Attempt) -> bool:
        """Whether the reservation is still held for what this attempt sent, and for nothing later."""
        return bool(self.sent_to(attempt.uid)) and self._sent.get(attempt.uid) is attempt

    async def _release(self, attempt: Attempt) -> None:
        try:
            pod = await self._api.get(PODS, attempt.pod.name, attempt.pod.namespace)
        except NotFound:
            bound = False
        except (ApiError, ApiUnreachable):
            bound = True
        else:
            bound = pod.spec.node_name == attempt.node
        if not bound:
            await self._locks.release(attempt.node, attempt.pod, attempt.uid)


def _start(work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
