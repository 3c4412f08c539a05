"""Why pods find no room, in plain words."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import TOTAL_EXCEEDED
from scheduler_ext.decide.misfit import Reason
from scheduler_ext.outlook.words import WORDS

MOST_REASONS = 6
_WORDS: Mapping[str, str] = {
    **{str(reason): words for reason, words in WORDS.items()},
    TOTAL_EXCEEDED: "kubelet would refuse the pod: its node's totals of GPU memory or cores are used up",
    UNREGISTERED: "offers no GPU",
    "Insufficient cpu": "too little CPU",
    "Insufficient memory": "too little memory of the node",
    "Too many pods": "as many pods as the node allows",
}
_COUNTED = re.compile(r"(\w+)(?:\([^()]*\))? \d+/\d+")
"""One reason of several in `Misfit.brief`."""


def counted(nodes: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    """Reasons and how many nodes have each, the most frequent first. A node with several reasons counts for each."""
    found: Counter[str] = Counter()
    for reason, number in nodes.items():
        for words in _words(reason):
            found[words] += number
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:MOST_REASONS]


def _words(reason: str) -> set[str]:
    reasons = _COUNTED.findall(reason) or [reason.partition("(")[0].partition(":")[0].strip()]
    telling = [each for each in reasons if each != Reason.TOO_FEW] or reasons
    return {_WORDS.get(each, each) for each in telling}
