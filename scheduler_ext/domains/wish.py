"""The wishes of a group's author for its place: the domain by annotations of its pods, and the order of the pods."""

import re
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


_ROLE = "training.kubeflow.org/replica-type"
_FIRST_ROLES = ("master", "launcher", "chief")
_INDICES = (
    "leaderworkerset.sigs.k8s.io/group-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "jobset.sigs.k8s.io/job-global-index",
    "jobset.sigs.k8s.io/job-index",
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
)
"""Labels with numbers, the one that counts most first: LeaderWorkerSet's, JobSet's, Kubeflow's trainer's, an indexed
Job's, a StatefulSet's."""
_LONGEST = 9
_NUMBERS = re.compile(r"([0-9]+)")

Rank = tuple[int, tuple[int, ...], tuple[tuple[int, str], ...]]


def rank_of(name: str, labels: Mapping[str, str]) -> Rank:
    """Returns a key by which pods of a group are sorted: a master first, then by their indices, then by name, in which
    numbers count as such.
    """
    role = labels.get(_ROLE, "").lower()
    indices = tuple(_index(labels.get(each, "")) for each in _INDICES)
    parts = tuple((int(part[:_LONGEST]), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(name))
    return int(bool(role) and role not in _FIRST_ROLES), indices, parts


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST else -1
