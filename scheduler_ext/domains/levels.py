"""Levels of domains: the labels of nodes that name them, from wide to narrow.

A domain is the nodes that have the same value of a label, within one domain of the wider levels: two blocks may each
have a rack `r1`. A node without the label is in no domain of that level.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from sys import intern

from proto.annotations.keys import NODE_CLIQUE, NODE_HOSTNAME

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


def labels_of(domains: Domains) -> dict[str, str]:
    """Returns the labels of a node in these domains: a label's value has no slash."""
    return {level: name.rpartition("/")[2] for level, name in domains.items()}


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
