"""Levels of domains, which labels of nodes name from wide to narrow, and what the author of a group wishes of them.

A domain is the nodes that have the same value of a label, within one domain of the wider levels: two blocks may each
have a rack `r1`. A node without the label is in no domain of that level.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern

from proto.annotations.keys import (
    KUEUE_PREFERRED_TOPOLOGY,
    KUEUE_REQUIRED_TOPOLOGY,
    NODE_CLIQUE,
    NODE_HOSTNAME,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
)

LEVELS = (
    "topology.kubernetes.io/zone",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
    "cloud.provider.com/topology-block",
    "cloud.provider.com/topology-rack",
    NODE_CLIQUE,
    NODE_HOSTNAME,
)
"""The levels by default: Kubernetes' zones, the switches that NVIDIA's Topograph labels, the block and rack of Kueue's
documents, the NVLink clique, the node."""
_NAMED_ALONE = frozenset({NODE_CLIQUE, NODE_HOSTNAME})
"""Labels with values that are unique in a cluster. A clique may extend over several racks."""
_WORD = re.compile(r"[^/.-]+$")

Domains = Mapping[str, str]
"""The names of the domains that a node is in, by level."""


def domains_of(labels: Mapping[str, str], levels: Sequence[str]) -> Domains:
    """Returns the domains of a node with these labels."""
    found, path = dict[str, str](), list[str]()
    for level in levels:
        value = labels.get(level)
        if not value:
            continue
        if level not in _NAMED_ALONE:
            path.append(value)
        found[level] = intern(value if level in _NAMED_ALONE else "/".join(path))
    return found


def word(level: str) -> str:
    """Returns the word for a domain of the level: `rack` for `cloud.provider.com/topology-rack`."""
    if level == NODE_HOSTNAME:
        return "node"
    found = _WORD.search(level)
    return found[0] if found else level


def read_levels(text: str) -> tuple[str, ...]:
    """Parses a comma list of labels. Raises ValueError for one that is no label, or is there twice."""
    levels = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    bad = next((each for each in levels if not re.fullmatch(LABEL_PATTERN, each)), None)
    if bad is not None:
        raise ValueError(f"{bad!r} is no label's name")
    if len(set(levels)) < len(levels):
        raise ValueError("a label is there twice")
    return levels


def write_levels(levels: Iterable[str]) -> str:
    return ",".join(levels)


LABEL_PATTERN = r"([a-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?"
"""The form of a label's name."""
LEVELS_PATTERN = rf"(\s*{LABEL_PATTERN}\s*(,\s*{LABEL_PATTERN}\s*)*)?"


_KEYS = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, KUEUE_REQUIRED_TOPOLOGY, KUEUE_PREFERRED_TOPOLOGY)
WISHES = frozenset(_KEYS)
"""The annotations with a wish."""
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
