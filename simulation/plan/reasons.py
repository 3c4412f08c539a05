"""The reason why pods find no room, in plain words."""

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler_ext.decide.reasons import words_of

MOST_REASONS = 6
_WORDS: Mapping[str, str] = {
    "Insufficient cpu": "too little CPU",
    "Insufficient memory": "too little memory of the node",
    "Too many pods": "as many pods as the node allows",
}
"""Words for kube-scheduler's own reasons."""


def counted(nodes: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    """Returns the number of nodes for each reason, the most frequent first. A node with several counts for each."""
    found: Counter[str] = Counter()
    for reason, number in nodes.items():
        for words in set(words_of(reason)):
            found[_WORDS.get(words, words)] += number
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:MOST_REASONS]
