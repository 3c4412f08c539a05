"""Annotations of pods that are none of ours or HAMi's, but nearly (pure)."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from proto.annotations import keys

FOR_AUTHORS = (
    keys.NODE_POLICY,
    keys.GPU_POLICY,
    keys.SCORING_WEIGHTS,
    keys.USE_GPU_TYPE,
    keys.NO_USE_GPU_TYPE,
    keys.USE_GPU_UUID,
    keys.NO_USE_GPU_UUID,
    keys.NUMA_BIND,
    keys.VGPU_MODE,
    keys.REQUIRED_TOPOLOGY,
    keys.PREFERRED_TOPOLOGY,
    keys.MEMORY_WISH,
)
"""The annotations that the author of a pod writes."""
DOMAINS = ("hami.io/", "topogpu.io/", "nvidia.com/")
"""The domains of annotations that the extender reads on a pod."""
MOST_JUDGED = 32
"""Annotations of one pod that are compared: authors write few."""
LONGEST = 64
_LIKENESS = 0.8
_KNOWN = frozenset((*FOR_AUTHORS, *keys.POD_WRITTEN_KEYS, keys.SCHEDULER_ROLE))


def misspelt(annotations: Iterable[str], domains: tuple[str, ...] = DOMAINS) -> Iterator[tuple[str, str]]:
    """Yields annotations that resemble a known one, with that. Only those of these domains are judged."""
    unknown = (key for key in annotations if key.startswith(domains) and key not in _KNOWN and len(key) <= LONGEST)
    for _, key in zip(range(MOST_JUDGED), unknown, strict=False):
        near = get_close_matches(key.lower(), FOR_AUTHORS, n=1, cutoff=_LIKENESS)
        if near:
            yield key, near[0]
