"""Faults that are switched on while the server runs (pure).

A fault meets the requests that it matches, as often as its `times` allows; the first that matches is used.
"""

from dataclasses import dataclass, field
from typing import Literal

from simulation.apiserver.errors import ApiRefusal
from simulation.apiserver.routes import RecordedRequest

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to matching requests; an empty `verbs` or `resources` matches all.

    `drop` closes the connection: "before" the request is carried out, or "after", so that a write took place and
    its answer is lost. `body` is sent instead of a JSON answer (garbage). `stall` keeps a watch silent.
    """

    verbs: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    subresource: str | None = None
    name: str = ""
    latency_seconds: float = 0.0
    status: int = 0
    drop: Literal["", "before", "after"] = ""
    body: bytes = b""
    stall: bool = False
    times: int | None = None

    def matches(self, request: RecordedRequest) -> bool:
        return (
            (not self.verbs or request.verb in self.verbs)
            and (not self.resources or request.resource in self.resources)
            and (self.subresource is None or self.subresource == request.subresource)
            and (not self.name or self.name == request.name)
        )

    def refusal(self) -> ApiRefusal:
        return ApiRefusal(self.status, _REASONS.get(self.status, "Unknown"), "a fault was injected into this request")


NO_FAULT = Fault()


@dataclass(slots=True)
class FaultPlan:
    """The faults in force, oldest first, with how often each has still to happen."""

    _active: list[tuple[Fault, int | None]] = field(default_factory=list)

    def add(self, fault: Fault) -> None:
        self._active.append((fault, fault.times))

    def remove(self, fault: Fault) -> None:
        """Switches one fault off; nothing happens if it is already over."""
        self._active = [entry for entry in self._active if entry[0] is not fault]

    def clear(self) -> None:
        self._active.clear()

    def meet(self, request: RecordedRequest) -> Fault:
        """Counts and returns the fault that this request meets; NO_FAULT if there is none."""
        for place, (fault, left) in enumerate(self._active):
            if fault.matches(request):
                if left is not None:
                    self._active[place : place + 1] = [(fault, left - 1)] if left > 1 else []
                return fault
        return NO_FAULT
