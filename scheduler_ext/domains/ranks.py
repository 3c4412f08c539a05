"""The order of a group's pods, for the placement of neighbours near each other."""

import re
from collections.abc import Mapping

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
