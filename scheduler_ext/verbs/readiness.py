"""Waits until decisions are possible here: only as the leader, and from a cache that has seen everything."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.requests import GpuRequest


class Leader(Protocol):
    """Knows whether this replica leads."""

    async def wait(self, seconds: float) -> bool: ...

    def problem(self) -> str: ...


class Cache(Protocol):
    """Knows what the API server has listed."""

    async def wait_until_synced(self, seconds: float) -> None: ...

    def missing(self) -> Sequence[str]: ...


class SearchTurns(Protocol):
    """Turns for long searches, by namespace."""

    async def take(self, namespace: str, steps: Iterator[None]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbReadiness:
    """A verb's request waits for `wait_seconds` at most."""

    leader: Leader
    cache: Cache
    index: NodeIndex
    turns: SearchTurns
    wait_seconds: float
    monotonic: Callable[[], float]

    async def wait(self) -> str:
        """Waits until decisions are possible here. Returns a sentence if they are not in time, else an empty text."""
        until = self.monotonic() + self.wait_seconds
        if await self.leader.wait(self.wait_seconds):
            await self.cache.wait_until_synced(max(until - self.monotonic(), 0))
        return self.problem()

    def problem(self) -> str:
        """Returns why no decision is possible here now, in one sentence; empty if one is."""
        problem = self.leader.problem()
        if not problem and (missing := self.cache.missing()):
            return f"not ready: the API server has not listed {', '.join(missing)} yet"
        return problem

    async def search(
        self, request: GpuRequest, node_names: Sequence[str], *, every: bool = False, rooms: bool = False
    ) -> None:
        """Searches in advance, so that the decision itself is quick: also for all pods of a group, with `rooms`.
        Between the steps of a long search others get their answers.
        """
        if rooms:
            await self.turns.take(request.namespace, self.index.prepare_rooms(request, node_names))
        await self.turns.take(request.namespace, self.index.prepare(request, node_names, every=every))
