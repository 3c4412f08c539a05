"""Waits until decisions are possible here: only as the leader, and from a cache that has seen everything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Leader(Protocol):
    """Knows whether this replica leads."""

    async def wait(self, seconds: float) -> bool: ...

    def problem(self) -> str: ...


class Cache(Protocol):
    """Knows what the API server has listed."""

    async def wait_until_synced(self, seconds: float) -> None: ...

    def missing(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbReadiness:
    """A verb's request waits for `wait_seconds` at most."""

    leader: Leader
    cache: Cache
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
