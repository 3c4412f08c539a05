"""Node and GPU policies, and scoring weights, as flags and pod annotations write them."""

from dataclasses import dataclass, field
from enum import StrEnum

from proto.annotations.keys import GPU_POLICY, NODE_POLICY, SCORING_WEIGHTS

_INT64_MAX = 2**63 - 1


class PolicyError(ValueError):
    """A policy or weight is not valid. `key` is the annotation or flag, `problem` names what to write instead."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class NodePolicy(StrEnum):
    BINPACK = "binpack"
    """Fullest node first."""
    SPREAD = "spread"
    """Emptiest node first."""
    FGD = "fgd"
    """The node first where the pod strands the least that popular pods could use. Among equals the fullest."""


class SortKey(StrEnum):
    """The properties by which GPUs are ordered. The GPU that sorts last is tried first."""

    SCORE = "score"
    SCORE_DESCENDING = "score descending"
    NUMA = "numa"
    NUMA_DESCENDING = "numa descending"
    USED_DESCENDING = "used descending"
    INDEX = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPolicy:
    """A GPU policy. `keys` order the GPUs; `bound_keys` order them for a pod that has to stay on one NUMA node."""

    text: str
    keys: tuple[SortKey, ...]
    bound_keys: tuple[SortKey, ...]
    topology_aware: bool = False
    packs: bool = False
    """`fgd`: a container of several GPUs gets the best-connected ones, but links do not rank nodes."""
    idle_only: bool = False
    """`mutex`: only GPUs that no container uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Factors of the three terms of the device score."""

    replicas: int = 1
    cores: int = 1
    memory: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies for one pod. `warnings` are sentences for the pod's author."""

    node: NodePolicy
    gpu: GpuPolicy
    weights: Weights = field(default_factory=Weights)
    warnings: tuple[str, ...] = ()

    @property
    def why_node(self) -> str:
        """Returns `policy binpack takes the fullest node on which the pod fits`."""
        return f"policy {self.node} {_WHY_NODE[self.node]}"

    @property
    def why_gpus(self) -> str:
        """Returns what the policy for GPUs prefers, likewise."""
        text = self.gpu.text.strip()
        return f"policy {text} {_WHY_GPUS.get(text, 'compares GPUs by these words, one after the other')}"


_SPREAD_KEYS = (SortKey.SCORE_DESCENDING, SortKey.NUMA)
_SINGLE_KEYS: dict[str, tuple[tuple[SortKey, ...], tuple[SortKey, ...]]] = {
    "binpack": ((SortKey.SCORE, SortKey.NUMA), (SortKey.NUMA_DESCENDING, SortKey.SCORE)),
    "spread": (_SPREAD_KEYS, (SortKey.NUMA, SortKey.SCORE_DESCENDING)),
    "mutex": ((SortKey.USED_DESCENDING, SortKey.NUMA), (SortKey.USED_DESCENDING, SortKey.NUMA)),
}
_SINGLE_KEYS["fgd"] = _SINGLE_KEYS["binpack"]
_SINGLE_KEYS["topology-aware"] = _SINGLE_KEYS["spread"]
_CHAIN_KEYS = {"binpack": SortKey.SCORE, "fgd": SortKey.SCORE, "spread": SortKey.SCORE_DESCENDING, "numa": SortKey.NUMA}
_ALIASES = {"topology": "topology-aware"}
GPU_WORDS = ("binpack", "spread", "topology-aware", "mutex", "numa", "fgd")
_ANY_WORD = "|".join((*GPU_WORDS, *_ALIASES))
GPU_POLICY_PATTERN = rf"({_ANY_WORD})(\s*,\s*({_ANY_WORD}))*"
"""The form of a GPU policy, as a regular expression."""


def parse_node_policy(text: str, key: str = "--node-scheduler-policy") -> NodePolicy:
    """Reads a flag. Raises PolicyError unless the text names a node policy."""
    try:
        return NodePolicy(text)
    except ValueError:
        raise PolicyError(key, f"unknown node policy {text!r}; write {', '.join(NodePolicy)}") from None


def parse_gpu_policy(text: str, key: str = "--gpu-scheduler-policy") -> GpuPolicy:
    """Reads a flag: one word or a comma list. Raises PolicyError for an unknown word."""
    unknown = _unknown_words(text)
    if unknown:
        raise PolicyError(
            key, f"unknown GPU policy {unknown[0]!r}; write {', '.join(GPU_WORDS)} or a comma list of them"
        )
    return _gpu_policy(text)


def alias_warnings(text: str, key: str = "--gpu-scheduler-policy") -> tuple[str, ...]:
    """Returns one sentence for each word of a GPU policy that is accepted but has another name."""
    aliases = ((token, _ALIASES[token]) for token in _tokens(text) if token in _ALIASES)
    return tuple(f"{key}: {token!r} is read as {word!r}; write that" for token, word in aliases)


def read_policies(annotations: dict[str, str], node: NodePolicy, gpu: GpuPolicy) -> Policies:
    """Returns the cluster's policies `node` and `gpu`, overridden by the pod's annotations.

    An unknown word does not override and gives a warning. Raises PolicyError for bad weights.
    """
    warnings: list[str] = []
    if NODE_POLICY in annotations:
        text = annotations[NODE_POLICY]
        if text in set(NodePolicy):
            node = NodePolicy(text)
        else:
            warnings.append(f"{NODE_POLICY}: unknown node policy {text!r}; placed by the cluster's, {node}")
    if GPU_POLICY in annotations:
        text = annotations[GPU_POLICY]
        fate = f"placed by the cluster's, {gpu.text}" if _names_no_policy(text) else "ignored"
        warnings += (f"{GPU_POLICY}: unknown GPU policy {word!r}; {fate}" for word in _unknown_words(text))
        warnings += alias_warnings(text, GPU_POLICY)
        gpu = gpu if _names_no_policy(text) else _gpu_policy(text)
    return Policies(node=node, gpu=gpu, weights=_weights(annotations), warnings=tuple(warnings))


def _tokens(text: str) -> list[str]:
    """A single word is taken unchanged, with its blanks; the words of a list are trimmed."""
    return [token.strip() for token in text.split(",")] if "," in text else [text]


def _names_no_policy(text: str) -> bool:
    return not any(token in GPU_WORDS or token in _ALIASES for token in _tokens(text))


def _unknown_words(text: str) -> list[str]:
    """Returns words that name no policy. Empty words inside a list do no harm, but an empty policy is not a policy."""
    is_list = "," in text
    return [t for t in _tokens(text) if t not in GPU_WORDS and t not in _ALIASES and (t or not is_list)]


def _gpu_policy(text: str) -> GpuPolicy:
    tokens = [_ALIASES.get(token, token) for token in _tokens(text)]
    if "," in text or tokens == ["numa"]:
        keys, bound_keys = _chain(tokens)
    else:
        keys, bound_keys = _SINGLE_KEYS[tokens[0]]
    return GpuPolicy(
        text=text,
        keys=keys,
        bound_keys=bound_keys,
        topology_aware="topology-aware" in tokens,
        packs="fgd" in tokens,
        idle_only="mutex" in tokens,
    )


def _chain(tokens: list[str]) -> tuple[tuple[SortKey, ...], tuple[SortKey, ...]]:
    keys = tuple(dict.fromkeys(_CHAIN_KEYS[token] for token in tokens if token in _CHAIN_KEYS))
    keys = keys or (SortKey.SCORE_DESCENDING,)
    rest = tuple(key for key in keys if key is not SortKey.NUMA)
    return (*keys, SortKey.INDEX), (SortKey.NUMA, *rest, SortKey.INDEX)


def _weights(annotations: dict[str, str]) -> Weights:
    text = annotations.get(SCORING_WEIGHTS)
    if text is None:
        return Weights()
    parts = text.split(",")
    values: dict[str, int] = {}
    for part in parts:
        name, separator, number = (piece.strip() for piece in part.partition("="))
        if name not in ("slot", "core", "memory") or not separator:
            raise _bad_weights(text, f"{part.strip()!r} is not slot=, core= or memory=")
        if name in values:
            raise _bad_weights(text, f"{name} is given twice")
        values[name] = _weight(text, name, number)
    if len(values) != 3:
        raise _bad_weights(text, "slot, core and memory are all needed")
    if not any(values.values()):
        raise _bad_weights(text, "at least one weight must be above 0")
    return Weights(replicas=values["slot"], cores=values["core"], memory=values["memory"])


def _weight(text: str, name: str, number: str) -> int:
    if not (number.isascii() and number.removeprefix("+").isdigit()) or int(number) > _INT64_MAX:
        raise _bad_weights(text, f"{name} must be a whole number from 0, found {number!r}")
    return int(number)


def _bad_weights(text: str, problem: str) -> PolicyError:
    return PolicyError(SCORING_WEIGHTS, f"{problem} in {text!r}; write it like slot=1,core=1,memory=3")


_WHY_NODE = {
    NodePolicy.BINPACK: "takes the fullest node on which the pod fits",
    NodePolicy.SPREAD: "takes the emptiest node on which the pod fits",
    NodePolicy.FGD: "takes the node where the pod strands least of what popular pods could use, then the fullest",
}
"""The effect of each node policy."""

_WHY_GPUS = {
    "binpack": "takes the fullest GPUs that fit",
    "spread": "takes the emptiest GPUs that fit",
    "topology-aware": "takes the best-connected GPUs that fit; for one GPU the one with the weakest links",
    "mutex": "takes GPUs that no container uses",
    "numa": "takes GPUs of one NUMA node",
    "fgd": "takes the fullest GPU that fits; for several GPUs the best-connected ones",
}
"""The effect of each GPU policy, by its word."""
