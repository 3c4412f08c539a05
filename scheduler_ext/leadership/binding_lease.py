"""The extenders' own Lease: the process that writes Bindings holds it, and renews it while it writes."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from program.tasks import Tasks
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound
from proto.kubernetes.objects import LEASES, Lease, ObjectMeta
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, Replaced, reflect
from scheduler_ext.leadership.turn import (
    BEGIN_SECONDS,
    RENEW_SECONDS,
    Turn,
    after_seen,
    free_at,
    is_anothers,
    lease_seconds,
)
from scheduler_ext.settings import LeaseSettings

BINDING_LEASE_SUFFIX = "-binding"

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1


class BindingLease:
    """Follows and takes the Lease. `changed` is called whenever the Lease has a new holder."""

    def __init__(
        self,
        *,
        api: ApiServer,
        settings: LeaseSettings,
        write_seconds: float,
        changed: Callable[[], None],
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._name = settings.name + BINDING_LEASE_SUFFIX
        self._namespace = settings.namespace
        self._process = f"{settings.identity}_{settings.process}"
        self._lasts_seconds = lease_seconds(write_seconds)
        self._changed = changed
        self._now = now
        self._monotonic = monotonic
        self._turn: Turn | None = None
        """None until it is known whether the Lease exists."""
        self._renewed_at = -BEGIN_SECONDS
        """The time at which the last successful renewal was sent, in monotonic seconds."""
        self._problem = ""
        self._tasks = Tasks()
        self._renewing: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Follows the Lease until cancelled."""
        selection = f"metadata.name={self._name}"
        async for change in reflect(self._api, LEASES, namespace=self._namespace, field_selector=selection):
            match change:
                case Replaced(leases):
                    self._saw(next(iter(leases), None))
                case ObjectApplied(lease):
                    self._saw(lease)
                case ObjectRemoved():
                    self._saw(None)
                case Interrupted(problem, seconds):
                    log.warning(
                        "the watch of lease %s is interrupted, next try in %.1f s: %s", self._name, seconds, problem
                    )

    def problem(self) -> str:
        """Returns why this process has not taken it yet; empty if no obstacle is known."""
        held_for = self.held_for()
        if held_for is None:
            return f"and does not know lease {self._named()} yet"
        if held_for > 0:
            return f"and waits until nothing more is bound by {self.holder()}"
        return f"but cannot write lease {self._named()}: {self._problem}" if self._problem else ""

    def holder(self) -> str:
        return "" if self._turn is None else self._turn.holder

    def is_held(self) -> bool:
        """Returns whether this process holds it, as far as is known."""
        return self._turn is not None and bool(self._turn.version) and self._turn.holder == self._process

    def held_for(self) -> float | None:
        """Returns the longest time in seconds in which another process may have Bindings under way; None if unknown."""
        if self._turn is None:
            return None
        return max(free_at(self._turn, self._process) - self._monotonic(), 0.0)

    async def take(self, overtaken: Callable[[], None], *, settled: bool) -> bool:
        """Takes the Lease. Returns whether it is held and was just renewed. The taker must still learn what earlier
        holders did.

        If another process may have held it since this one did, `overtaken` is called first: the next process could not
        see that any more. Then nothing that was sent from here may be carried out later, as `settled` states. The watch
        may be dead, so the Lease is judged as it is when it is written.
        """

        def may() -> bool:
            if self._turn is None or self.held_for() != 0:
                return False
            if not is_anothers(self._turn, self._process):
                return True
            if settled:
                overtaken()
            return settled

        await self._renew(may)
        return self._is_fresh()

    async def permit(self) -> str:
        """Returns why no Binding may begin now, in one sentence; empty if one may."""
        is_due = self._monotonic() >= self._renewed_at + RENEW_SECONDS
        if is_due and (self._renewing is None or self._renewing.done()):
            self._renewing = self._tasks.begin(self._renew(self.is_held))
        if not self._is_fresh() and self._renewing is not None:
            await asyncio.shield(self._renewing)
        if self._is_fresh():
            return ""
        return f"lease {self._named()} cannot be renewed: {self._problem or f'it is held by {self.holder() or None}'}"

    async def release(self) -> None:
        """Gives the Lease up after every Binding sent from here is carried out or can no longer be. A failure is
        logged: the next holder waits until the Lease ends.
        """
        self._renewed_at = -BEGIN_SECONDS
        if not self.is_held() or await self._write({"holderIdentity": None, "renewTime": None}, self.is_held):
            return
        if self.is_held():
            log.warning("lease %s still names this process as one that binds: %s", self._named(), self._problem)

    async def end(self) -> None:
        await self._tasks.end()

    def _is_fresh(self) -> bool:
        return self.is_held() and self._monotonic() < self._renewed_at + BEGIN_SECONDS

    async def _renew(self, may: Callable[[], bool]) -> None:
        sent_at = self._monotonic()
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._process, "renewTime": stamp, "leaseDurationSeconds": self._lasts_seconds}
        if await self._write(spec, may):
            self._renewed_at = sent_at

    async def _write(self, spec: dict[str, object], may: Callable[[], bool]) -> bool:
        """Writes the Lease in the version last seen, only while it `may` be written. Returns whether that succeeded."""
        while self._turn is not None and may():
            try:
                self._saw(await self._written(self._turn.version, spec))
            except (ApiError, ApiUnreachable) as error:
                if isinstance(error, NotFound | Conflict) and await self._read():
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if str(error) != self._problem:
                    log.warning("lease %s cannot be written: %s", self._named(), error)
                self._problem = str(error)
                return False
            self._problem = ""
            return True
        return False

    async def _written(self, version: str, spec: dict[str, object]) -> Lease:
        """Returns the written Lease. Raises ApiError, NotFound or Conflict if it was changed, or ApiUnreachable."""
        if not version:
            lease = Lease(metadata=ObjectMeta(name=self._name, namespace=self._namespace))
            version = (await self._api.create(LEASES, lease, namespace=self._namespace)).metadata.resource_version
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        return await self._api.patch(LEASES, self._name, body, namespace=self._namespace)

    async def _read(self) -> bool:
        """Reads the Lease after it was written or deleted elsewhere: a watch that did not report that may be dead."""
        selection = f"metadata.name={self._name}"
        try:
            page = await self._api.list_page(LEASES, namespace=self._namespace, field_selector=selection)
        except (ApiError, ApiUnreachable):
            return False
        self._saw(next(iter(page.items), None))
        return True

    def _saw(self, lease: Lease | None) -> None:
        known, holder, held = self._turn is not None, self.holder(), self.is_held()
        self._turn = after_seen(self._turn or Turn(), lease, self._monotonic())
        if not known or (holder, held) != (self.holder(), self.is_held()):
            self._changed()

    def _named(self) -> str:
        return f"{self._namespace}/{self._name}"
