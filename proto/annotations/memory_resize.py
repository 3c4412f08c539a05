"""`topogpu.io/gpu-memory`: the GPU memory that somebody wants for running containers, and what became of the wish.

wish   := entry ("," entry)* ("@" stamp)?      the stamp makes a wish new that was refused before
entry  := (container "=")? amount              without a name: of the pod's one container that has GPUs
amount := MiB, or bytes with a suffix from M on: `8192`, `8Gi`

All GPUs of a container get the same amount. `topogpu.io/gpu-memory-resize` is the answer, as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

import msgspec

from proto.annotations.errors import AnnotationError, readable
from proto.annotations.keys import MEMORY_RESIZE, MEMORY_WISH
from proto.annotations.values import decode_json
from proto.devices import LARGEST, ContainerShares, DeviceUUID, PodShares
from proto.quantity import QuantityError, mebibytes

LONGEST_WISH = 4096
"""Characters. A longer wish is refused unread."""
LONGEST_ANSWER = 32_768
"""Characters. No answer has so many, though JSON may write six for each character of the wish."""
_SHOWN = 200


class ResizeState(StrEnum):
    """The steps of a resize, and who writes each of them."""

    SHRINKING = "shrinking"
    """The daemon: a container still uses more than it shall have. It gets no further memory."""
    READY = "ready"
    """The daemon: no container can use more than the smaller of what it has and what it shall have."""
    GROWING = "growing"
    """The extender: the larger amounts count as taken, before a container has them."""
    DONE = "done"
    REFUSED = "refused"
    """Either: nothing grows, and this wish is not looked at again."""


ENDED = frozenset({ResizeState.DONE, ResizeState.REFUSED})


class ResizeAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a wish. `why` is a sentence for people; empty where the state is enough."""

    wish: str
    state: ResizeState
    why: str = ""


def encode_answer(answer: ResizeAnswer) -> str:
    return msgspec.json.encode(answer).decode()


def decode_answer(value: str) -> ResizeAnswer:
    """Raises AnnotationError."""
    return decode_json(MEMORY_RESIZE, value, ResizeAnswer)


def wish_in(annotations: Mapping[str, str]) -> str:
    """Returns the wish on a pod, empty without one. Of a longer wish the beginning is enough to refuse it."""
    return annotations.get(MEMORY_WISH, "")[: LONGEST_WISH + 1]


def answer_in(annotations: Mapping[str, str]) -> ResizeAnswer | None:
    """Returns the answer on a pod. One that cannot be read promises nothing, so it counts as none."""
    return readable(decode_answer, annotations.get(MEMORY_RESIZE))


def answer_words(answer: ResizeAnswer) -> str:
    """Returns what became of the wish, in words for people."""
    wish = answer.wish.partition("@")[0][:_SHOWN]
    words = {
        ResizeState.SHRINKING: f"GPU memory becomes smaller ({wish})",
        ResizeState.READY: f"GPU memory changes ({wish}): the scheduler decides",
        ResizeState.GROWING: f"GPU memory becomes larger ({wish})",
        ResizeState.DONE: f"GPU memory changed as wished ({wish})",
        ResizeState.REFUSED: f"GPU memory stays as it is, though {wish} was wished",
    }[answer.state]
    return f"{words}: {answer.why}" if answer.why else words


def resize_words(annotations: Mapping[str, str]) -> str:
    """Returns how far a pod's wish has come, in words for people; empty without one, and for one that was fulfilled."""
    wish, answer = wish_in(annotations), answer_in(annotations)
    if not wish:
        return ""
    if answer is None or answer.wish != wish:
        return f"GPU memory shall change ({wish.partition('@')[0][:_SHOWN]}): its node's daemon has not answered yet"
    return "" if answer.state is ResizeState.DONE else answer_words(answer)


def encode_wish(amounts_mib: Mapping[str, int], stamp: str = "") -> str:
    """Writes the wish; the name is empty for the one container that has GPUs."""
    entries = ",".join(f"{name}={mib}" if name else str(mib) for name, mib in amounts_mib.items())
    return f"{entries}@{stamp}" if stamp else entries


def decode_wish(value: str) -> Mapping[str, int]:
    """Returns MiB by container. Raises AnnotationError."""
    if len(value) > LONGEST_WISH:
        raise AnnotationError(MEMORY_WISH, "", f"it has more than {LONGEST_WISH} characters")
    amounts: dict[str, int] = {}
    for position, entry in enumerate(value.partition("@")[0].split(",")):
        name, is_named, amount = entry.rpartition("=")
        name = name.strip()
        if is_named and not name:
            raise AnnotationError(MEMORY_WISH, f"entry {position}", "no container's name before '='")
        if name in amounts:
            raise AnnotationError(
                MEMORY_WISH, f"entry {position}", f"{f'container {name}' if name else 'the container'} is named twice"
            )
        amounts[name] = _mib(amount.strip(), f"container {name}" if name else "")
    return amounts


def wished(value: str, containers: Sequence[str], shares: PodShares) -> PodShares:
    """Returns what the containers shall hold. `shares` are what they hold, with one entry for each of `containers`.
    Raises AnnotationError.
    """
    amounts = dict(decode_wish(value))
    with_gpus = [name for name, held in zip(containers, shares, strict=True) if held]
    if "" in amounts:
        if len(with_gpus) != 1 or len(amounts) > 1:
            example = ",".join(f"{name}=8Gi" for name in with_gpus)
            raise AnnotationError(MEMORY_WISH, "", f"name the containers that have GPUs, for example {example[:200]}")
        amounts = {with_gpus[0]: amounts[""]}
    for name in amounts:
        if name not in with_gpus:
            problem = "has no GPU" if name in containers else "is not a container of this pod"
            raise AnnotationError(MEMORY_WISH, "", f"{name[:63]} {problem}")
    return tuple(
        tuple(replace(share, memory_mib=amounts[name]) for share in held) if name in amounts else held
        for name, held in zip(containers, shares, strict=True)
    )


def with_sizes(shares: PodShares, sizes_mib: Mapping[DeviceUUID, int]) -> PodShares:
    """Returns the shares; one without a size is the whole GPU."""
    return tuple(
        tuple(replace(each, memory_mib=each.memory_mib or sizes_mib.get(each.uuid, 0)) for each in held)
        for held in shares
    )


def smaller(one: PodShares, other: PodShares) -> PodShares:
    """Returns the smaller memory of each share. Both have the same GPUs."""
    return tuple(map(_smaller, one, other))


def larger(one: PodShares, other: PodShares) -> PodShares:
    """Returns the larger memory of each share. Both have the same GPUs."""
    return tuple(
        tuple(replace(a, memory_mib=max(a.memory_mib, b.memory_mib)) for a, b in zip(mine, theirs, strict=True))
        for mine, theirs in zip(one, other, strict=True)
    )


def _smaller(one: ContainerShares, other: ContainerShares) -> ContainerShares:
    return tuple(replace(a, memory_mib=min(a.memory_mib, b.memory_mib)) for a, b in zip(one, other, strict=True))


def _mib(text: str, where: str) -> int:
    """Raises AnnotationError."""
    if text.endswith("%"):
        raise AnnotationError(
            MEMORY_WISH, where, f"expected an amount such as 8192 or 8Gi, found {text[:40]!r}: GPUs differ"
        )
    try:
        mib = mebibytes(text)
    except QuantityError as error:
        raise AnnotationError(MEMORY_WISH, where, f"expected MiB such as 8192, or 8Gi, found {text[:40]!r}") from error
    if not 0 < mib <= LARGEST:
        raise AnnotationError(MEMORY_WISH, where, f"expected 1 to {LARGEST} MiB, found {text[:40]!r}")
    return mib
