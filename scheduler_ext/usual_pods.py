"""Reads which kinds of pods the cluster's owner expects: policy `fgd` counts them before it has seen any pod."""

import re
from dataclasses import dataclass

from proto.annotations import keys
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources

MOST_KINDS = 1_000
MOST_PODS = 10**9
_NUMBER = r"[1-9][0-9]{0,9}"
_RESOURCE = r"(cpu|memory|[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)=[^\s;]+"
_KIND = rf"\s*({_NUMBER}(\s+{_RESOURCE})+)?\s*"
USUAL_PODS_PATTERN = f"{_KIND}(;{_KIND})*"
"""The form of kinds of pods, as a regular expression."""
ANNOTATIONS = (keys.USE_GPU_TYPE, keys.NO_USE_GPU_TYPE, keys.VGPU_MODE, keys.GPU_POLICY)
"""Annotations by which kinds of pods differ."""
HOST_RESOURCES = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class UsualPods:
    """A number of pods with one container. `requests` has its resources and the pod's annotations."""

    number: int
    requests: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return " ".join([str(self.number), *(f"{key}={value}" for key, value in self.requests)])

    def pod(self) -> Pod:
        """Returns one of these pods."""
        limits: dict[str, str | int | float] = {key: value for key, value in self.requests if key not in ANNOTATIONS}
        annotations = {key: value for key, value in self.requests if key in ANNOTATIONS}
        return Pod(
            metadata=ObjectMeta(name="usual", namespace="default", uid="usual", annotations=annotations),
            spec=PodSpec(containers=[Container(name="usual", resources=Resources(limits=limits))]),
        )


def read_usual_pods(text: str) -> tuple[UsualPods, ...]:
    """Returns kinds of pods, such as `70 nvidia.com/gpu=1 cpu=4; 5 nvidia.com/gpu=8`. Raises ValueError."""
    kinds = [part.split() for part in text.split(";") if part.strip()]
    if len(kinds) > MOST_KINDS:
        raise ValueError(f"{len(kinds)} kinds are more than {MOST_KINDS}")
    return tuple(_read(words) for words in kinds)


def write_usual_pods(kinds: tuple[UsualPods, ...]) -> str:
    return "; ".join(map(str, kinds))


def _read(words: list[str]) -> UsualPods:
    number, *requests = words
    if not re.fullmatch(_NUMBER, number) or int(number) > MOST_PODS:
        raise ValueError(f"{number!r} is no number of pods")
    pairs = [(name, value) for name, _, value in (word.partition("=") for word in requests)]
    if not all(re.fullmatch(_RESOURCE, word) for word in requests) or not 0 < len(dict(pairs)) == len(pairs):
        raise ValueError(f"{' '.join(requests)!r} does not name each resource once, with =")
    return UsualPods(int(number), tuple(pairs))
