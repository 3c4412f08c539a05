"""Explains in a few words why a pod has its GPUs: the policies in force, the links among them, its requirements."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from proto.annotations.keys import NO_USE_GPU_TYPE, NO_USE_GPU_UUID, USE_GPU_TYPE, USE_GPU_UUID
from scheduler_ext.policies import NodePolicy, parse_gpu_policy, read_policies

DEFAULT_NODE_POLICY = NodePolicy.BINPACK
DEFAULT_GPU_POLICY = "spread"
_SELECTORS = (
    (USE_GPU_TYPE, "only {}"),
    (NO_USE_GPU_TYPE, "no {}"),
    (USE_GPU_UUID, "only {}"),
    (NO_USE_GPU_UUID, "not {}"),
)


def explain_choice(
    annotations: Mapping[str, str], groups: Sequence[Sequence[int]], links: Sequence[Sequence[str]]
) -> str:
    """`groups` are the GPU indices of each container, `links` the node's matrix; empty for a pod without GPUs."""
    if not any(groups):
        return ""
    policies = read_policies(dict(annotations), DEFAULT_NODE_POLICY, parse_gpu_policy(DEFAULT_GPU_POLICY))
    largest = max(groups, key=len)
    linked = policies.gpu.topology_aware and len(largest) > 1
    node = "best-linked" if linked else policies.node
    choice = links_among(largest, links) if linked else f"{policies.gpu.text} GPU"
    words = [f"{node} node, {choice}"]
    words += [text.format(annotations[key]) for key, text in _SELECTORS if annotations.get(key)]
    return ", ".join(words)


def links_among(gpus: Sequence[int], links: Sequence[Sequence[str]]) -> str:
    """Returns `NV12 among all 4`; the most frequent token first where they differ."""
    pairs = [(first, second) for first, second in combinations(gpus, 2) if min(first, second) >= 0]
    tokens = [token for token, _ in Counter(links[first][second] for first, second in pairs).most_common()]
    among = f"all {len(gpus)}" if len(gpus) > 2 else "both"
    return f"{' and '.join(tokens)} among {among}"
