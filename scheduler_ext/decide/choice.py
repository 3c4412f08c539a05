"""The part of a decision that `/filter` answers with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from proto.devices import PodShares
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.misfit import Misfit, NotOffered
from scheduler_ext.decide.reasons import joined
from scheduler_ext.decide.unresolvable import refusals_of

MOST_NODES_NAMED = 20
"""If more nodes than this fit, only the score of the chosen one is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The number of offered nodes that fit, and their scores. If many fit, only the score of the chosen one
    is there.
    """

    fitting: int = 0
    unknown: int = 0
    """Number of nodes that were not judged. The chosen node is better in any case."""
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """A decision without the reasons why nodes failed when one fits: in a large cluster no reader needs them.

    `tally` counts when it is called, usually before the next choice: kube-scheduler does not wait for it.
    """

    node: str | None
    shares: PodShares = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """The reasons of the nodes where evicting other pods may help, if none fits. `unresolvable` has the other nodes."""
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    words: Callable[[], Mapping[str, str]] = field(default=dict, compare=False)
    """Returns the reasons for people by node, as far as nodes were judged; call it before the next choice."""
    misfit: Callable[[str], Misfit | NotOffered | None] = field(default=lambda _: None, compare=False)
    """Judges one node again, for its figures."""
    error: str = ""
    group: str = ""
    """A sentence about the pod's group if not all of it fits."""
    tally: Callable[[], Tally] = field(default=Tally, compare=False)


def choice_of(decision: Decision) -> NodeChoice:
    if decision.node is None:
        failed, unresolvable = refusals_of(decision.misfits)
        misfits = decision.misfits
        return NodeChoice(
            node=None,
            failed=failed,
            unresolvable=unresolvable,
            words=lambda: {name: joined(each.words()) for name, each in misfits.items()},
            misfit=misfits.get,
            error=decision.error,
        )
    scores = decision.scores
    named = scores if len(scores) <= MOST_NODES_NAMED else {decision.node: scores[decision.node]}
    tally = Tally(fitting=len(scores), scores=named)
    return NodeChoice(node=decision.node, shares=decision.shares, tally=lambda: tally)
