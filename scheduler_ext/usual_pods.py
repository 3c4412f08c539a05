"""Reads which kinds of pods the cluster's owner expects: policy `fgd` counts them before it has seen any pod."""

from dataclasses import dataclass

from proto.annotations import keys
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources

MOST_KINDS = 1_000
MOST_PODS = 10**9
_KIND_PATTERN = r"\s*([0-9]{1,12}(\s+[^\s=;]+=[^\s;]+)*)?\s*"
USUAL_PODS_PATTERN = f"{_KIND_PATTERN}(;{_KIND_PATTERN})*"
"""The form of kinds of pods, as a regular expression."""
ANNOTATIONS = (keys.USE_GPU_TYPE, keys.NO_USE_GPU_TYPE, keys.VGPU_MODE, keys.GPU_POLICY)
"""Annotations by which kinds of pods differ."""
HOST_RESOURCES = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class UsualPods:
    """A number of pods of one kind, each with one container. `asks` are its resources, and the annotations of
    the pod.
    """

    number: int
    asks: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return " ".join([str(self.number), *(f"{key}={value}" for key, value in self.asks)])

    def pod(self) -> Pod:
        """Returns one of these pods."""
        limits: dict[str, str | int | float] = {key: value for key, value in self.asks if key not in ANNOTATIONS}
        annotations = {key: value for key, value in self.asks if key in ANNOTATIONS}
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
    number, *asks = words
    if not (number.isascii() and number.isdigit() and 0 < int(number[:12]) <= MOST_PODS and len(number) <= 12):
        raise ValueError(f"{number!r} is no number of pods")
    pairs = [tuple(word.split("=", 1)) for word in asks]
    if not all(len(pair) == 2 and all(pair) for pair in pairs) or len({pair[0] for pair in pairs}) < len(pairs):
        raise ValueError(f"{' '.join(asks)!r} does not name each resource once, with =")
    return UsualPods(int(number), tuple((pair[0], pair[1]) for pair in pairs))
