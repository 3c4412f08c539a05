"""Follows the Lease of the kube-scheduler beside us, marks there who may be binding, labels the scheduler's pods."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import uuid4

from proto.annotations.keys import LEASE_BINDING, SCHEDULER_ROLE
from proto.kubernetes.client import ApiError, ApiServer, ApiUnreachable
from proto.kubernetes.objects import LEASES, PODS, Lease
from proto.kubernetes.reflector import Applied, Interrupted, Removed, Replaced, reflect
from scheduler_ext.leadership.election import (
    Role,
    Standing,
    after_catching_up,
    after_lease,
    after_time,
    is_held_by,
    others_may_write_until,
)

log = logging.getLogger(__name__)

_KINSHIP = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
"""Labels that the replicas of one deployment share."""
_LABEL_RETRY_SECONDS = 5.0
_SILENT_SECONDS = 5.0
"""kube-scheduler renews every 2 s, and who holds the Lease is known for 15 s: a dead connection must not hide that."""
_MARK_RETRY_SECONDS = 0.5
_UNMARK_RETRY_SECONDS = 0.1
_MARK_ATTEMPTS = 5
LEAVING_SECONDS = 1.0
"""For which kube-scheduler may release its Lease before the mark is taken off: both end at once, and a write of ours in
between would make its release fail.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """`identity` is this host's name; the pod's own name and namespace are empty outside a pod."""

    name: str = ""
    """Of the Lease; empty without leader election."""
    namespace: str = ""
    identity: str = ""
    pod_name: str = ""
    pod_namespace: str = ""


class Leadership:
    """Leads from the start without an election.

    `catch_up` returns once all that was decided before is known, `written` once no Binding is on its way, and says
    whether none that was sent can be carried out yet.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        settings: LeaseSettings,
        catch_up: Callable[[], Awaitable[None]],
        written: Callable[[], Awaitable[bool]],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._settings = settings
        self._catch_up = catch_up
        self._written = written
        self._process = f"{settings.identity}_{uuid4()}"
        self._leaving = False
        self._marking = ""
        """Why the Lease cannot be marked; empty while it can."""
        self._monotonic = monotonic
        self._standing = Standing()
        self._interrupted = ""
        self._changed = asyncio.Event()

    def leads(self) -> bool:
        if not self._settings.name:
            return True
        return not self._leaving and after_time(self._standing, self._monotonic()).role is Role.LEADER

    def problem(self) -> str:
        """One sentence about why this replica does not decide; empty when it does."""
        if self.leads():
            return ""
        if self._leaving:
            return "this replica is stopping"
        standing = self._standing
        if standing.role is Role.TAKING_OVER:
            return f"this replica is taking over {self._taking_over()}"
        lease = f"lease {self._settings.namespace}/{self._settings.name}"
        if not standing.holder:
            return f"this replica does not lead: nobody holds {lease}"
        return f"this replica does not lead: {lease} was last renewed by {standing.holder}"

    def _taking_over(self) -> str:
        if self._marking:
            return f"but cannot mark the lease: {self._marking}"
        if self._others_may_write() > 0:
            return f"and waits until nothing more is bound by {self._standing.marked}"
        return "and still lists what was decided before"

    def interrupted(self) -> str:
        """Why it is not known who holds the Lease now; empty while the API server answers for it."""
        return self._interrupted

    async def wait(self, seconds: float) -> bool:
        """False when this replica does not lead within that time."""
        if self.leads():
            return True  # asked for every pod: no timer for the ordinary case
        try:
            async with asyncio.timeout(seconds):
                while not self.leads():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.name:
                tasks.create_task(self._follow())
                tasks.create_task(self._take_over())
            if self._settings.pod_name and self._settings.pod_namespace:
                tasks.create_task(self._label())

    async def _follow(self) -> None:
        selection = f"metadata.name={self._settings.name}"
        namespace = self._settings.namespace
        async for change in reflect(
            self._api, LEASES, namespace=namespace, field_selector=selection, silent_seconds=_SILENT_SECONDS
        ):
            self._interrupted = ""
            match change:
                case Replaced(leases):
                    self._saw(next(iter(leases), None))
                case Applied(lease):
                    self._saw(lease)
                case Removed():
                    self._saw(None)
                case Interrupted(problem, seconds):
                    self._interrupted = f"the watch of the lease is interrupted: {problem}"
                    log.warning("the watch of the lease is interrupted, next try in %.1f s: %s", seconds, problem)

    def _saw(self, lease: Lease | None) -> None:
        identity = self._settings.identity
        self._move(after_lease(self._standing, lease, identity, self._monotonic()))

    def _move(self, standing: Standing) -> None:
        before, self._standing = self._standing, standing
        if before.role is not standing.role:
            log.info("this replica is now: %s (the lease is held by %s)", standing.role, standing.holder or "nobody")
        if (before.role, before.holder, before.marked) != (standing.role, standing.holder, standing.marked):
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _take_over(self) -> None:
        while True:
            changed = self._changed
            taking = self._standing
            if taking.role is Role.TAKING_OVER:
                waiting = self._others_may_write()
                if waiting > 0:
                    log.info(
                        "nothing is decided for up to %.0f s: %s may have Bindings under way", waiting, taking.marked
                    )
                    await _wait(changed, waiting)
                elif not await self._mark():
                    await _wait(changed, _MARK_RETRY_SECONDS)
                else:
                    await self._catch_up()
                    if self._standing.holder == taking.holder:
                        self._move(after_catching_up(self._standing))
                continue
            await _wait(changed, await self._keep_the_mark_true(taking))
            self._move(after_time(self._standing, self._monotonic()))

    async def _keep_the_mark_true(self, standing: Standing) -> float | None:
        """On the Lease while this replica leads, and off it once all it wrote is settled. In how many seconds to look
        again; None if only a change is to be waited for.
        """
        is_ours = standing.marked == self._process
        if self._leaving:
            return None
        if standing.role is Role.LEADER:
            expires_in = standing.expires_at - self._monotonic()
            return expires_in if is_ours or await self._mark() else min(expires_in, _MARK_RETRY_SECONDS)
        if is_ours and not await self._written():
            return _MARK_RETRY_SECONDS
        if is_ours:
            await self._unmark()
        return None

    def _others_may_write(self) -> float:
        """For how many seconds more, at most."""
        until = others_may_write_until(self._standing, self._process, self._api.timeout_seconds)
        return max(until - self._monotonic(), 0.0)

    async def leave(self) -> None:
        """Nothing more will be bound here: the next leader need not wait. For when `run` is still at work."""
        self._leaving = True
        try:
            async with asyncio.timeout(LEAVING_SECONDS):
                while is_held_by(self._standing.holder, self._settings.identity):
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self._standing.marked == self._process and await self._written():
            await self._unmark()

    async def _mark(self) -> bool:
        """Before the first Binding: only while the Lease is as it was seen, held by the kube-scheduler beside us."""
        if self._standing.marked == self._process:
            return True
        try:
            await self._write_mark(self._process, self._standing.version)
        except (ApiError, ApiUnreachable) as error:
            conflict = isinstance(error, ApiError) and error.status == 409
            if not conflict and self._marking != str(error):
                log.warning("the lease cannot be marked, and without that nothing is decided: %s", error)
            self._marking = "" if conflict else str(error)
            return False
        self._marking = ""
        return True

    async def _unmark(self) -> None:
        """Only if it is ours. Trouble is logged: who comes next waits for its time."""
        try:
            for _ in range(_MARK_ATTEMPTS):
                if self._standing.marked != self._process:
                    return
                try:
                    await self._write_mark(None, self._standing.version)
                except ApiError as error:
                    if error.status != 409:
                        raise
                    # Renewed since; the watch is about to say so.
                    await asyncio.sleep(_UNMARK_RETRY_SECONDS)
        except (ApiError, ApiUnreachable) as error:
            log.warning("the lease still says that this process may be binding: %s", error)

    async def _write_mark(self, process: str | None, version: str) -> None:
        metadata = {"annotations": {LEASE_BINDING: process}, "resourceVersion": version}
        settings = self._settings
        self._saw(await self._api.patch(LEASES, settings.name, {"metadata": metadata}, namespace=settings.namespace))

    async def _label(self) -> None:
        """The Service of the webhook selects the leader by its label."""
        while True:
            changed = self._changed
            if self.leads():
                try:
                    await self._label_pods()
                except (ApiError, ApiUnreachable) as error:
                    log.warning("the scheduler's pods are not labelled with their roles: %s", error)
                    await asyncio.sleep(_LABEL_RETRY_SECONDS)
                    continue
            await changed.wait()

    async def _label_pods(self) -> None:
        own, namespace = self._settings.pod_name, self._settings.pod_namespace
        ours = await self._api.get(PODS, own, namespace)
        kin = [f"{label}={ours.metadata.labels[label]}" for label in _KINSHIP if label in ours.metadata.labels]
        page = await self._api.list_page(PODS, namespace=namespace, label_selector=",".join(kin)) if kin else None
        pods = [ours, *(page.items if page is not None else ())]
        roles = {pod.metadata.name: pod.metadata.labels.get(SCHEDULER_ROLE, "") for pod in pods}
        for name in roles:
            role = "leader" if name == own else "follower"
            if roles.get(name) != role:
                labels = {"metadata": {"labels": {SCHEDULER_ROLE: role}}}
                await self._api.patch(PODS, name, labels, namespace=namespace)


async def _wait(changed: asyncio.Event, seconds: float | None) -> None:
    """For the change, and no longer than that."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        pass
