"""One bind under way."""

from dataclasses import dataclass

from scheduler_ext.cluster.facts import PodName


@dataclass(slots=True)
class Attempt:
    """`doing` is what a missed deadline is blamed on."""

    pod: PodName
    uid: str
    node: str
    doing: str = "reading the pod"
    lock_wanted: bool = False
    uncertain: bool = False
    """Whether a Binding was sent without an answer that settles what became of it."""
