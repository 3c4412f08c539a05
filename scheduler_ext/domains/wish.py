"""The domain that the author of a group wants it in, as annotations of its pods name it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proto.annotations.keys import (
    KUEUE_PREFERRED_TOPOLOGY,
    KUEUE_REQUIRED_TOPOLOGY,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
)

_KEYS = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, KUEUE_REQUIRED_TOPOLOGY, KUEUE_PREFERRED_TOPOLOGY)
_READ = frozenset(_KEYS)
_REQUIRED = frozenset({REQUIRED_TOPOLOGY, KUEUE_REQUIRED_TOPOLOGY})
_OURS = frozenset({REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY})


class WishError(ValueError):
    """The annotation `key` names no level. The message is a sentence."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


@dataclass(frozen=True, slots=True)
class DomainWish:
    """The whole group goes into one domain of the level or of a narrower one. If it is not required, the group goes
    into as few domains of the level as can be where no such domain holds it.
    """

    level: str
    required: bool


def read_wish(annotations: Mapping[str, str], levels: Sequence[str]) -> DomainWish | None:
    """Returns the wish; None without one. Ours come before Kueue's, what is required before what is preferred. A level
    that is not among ours is Kueue's own affair. Raises WishError for one in our annotations.
    """
    if _READ.isdisjoint(annotations):
        return None
    for key in _KEYS:
        level = annotations.get(key)
        if level is None:
            continue
        if level in levels:
            return DomainWish(level, required=key in _REQUIRED)
        if key in _OURS:
            known = ", ".join(levels) or "none"
            raise WishError(key, f"{level!r} is no level of domains here; the levels are {known}")
    return None
