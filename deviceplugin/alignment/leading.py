"""Closes and opens NUMA nodes to kubelet, as a value machine: the extender must expect what kubelet will do.

| state | the Node shows | kubelet's hints | the extender |
|---|---|---|---|
| steady | `closed` | without `closed` | expects kubelet on the other NUMA nodes |
| changing | `closed`, `changing` | without `closed` | sends no pod with CPUs of its own |
| made, after a while in which kubelet has admitted every pod | `changing` | without the new ones | the same |
| steady again, once kubelet has the hints | the new ones | without the new ones | as above |
"""

from dataclasses import dataclass

QUIET_SECONDS = 1.5
"""Seconds for which the Node shows the change before it is made: decisions of before arrive by then."""
TAKEN_SECONDS = 0.5
"""Seconds that kubelet has for taking new hints: it does not answer them."""


@dataclass(frozen=True, slots=True)
class Leading:
    """`closed` are the NUMA nodes to which kubelet is not led, and `wanted` those that shall be."""

    closed: frozenset[int] = frozenset()
    wanted: frozenset[int] = frozenset()
    shown_since: float | None = None
    """The time from which on the Node was seen to show that this changes."""

    made_at: float | None = None
    """The time at which kubelet was sent the hints of a change."""

    @property
    def is_changing(self) -> bool:
        return self.wanted != self.closed or self.made_at is not None


def next_leading(
    state: Leading, wanted: frozenset[int] | None, *, is_shown: bool, is_settled: bool, now: float
) -> Leading:
    """Returns the next state. `wanted` is None where the Node shows no NUMA nodes: the extender expects nothing, and
    all are open at once. `is_shown`: the Node shows the change. `is_settled`: no pod waits for its admission.
    """
    if wanted is None:
        return Leading()
    if state.made_at is not None and now - state.made_at < TAKEN_SECONDS:
        return state
    if wanted == state.closed:
        return Leading(wanted, wanted)
    since = (now if state.shown_since is None else state.shown_since) if is_shown else None
    if is_settled and since is not None and now - since >= QUIET_SECONDS:
        return Leading(wanted, wanted, made_at=now)
    return Leading(state.closed, wanted, since)
