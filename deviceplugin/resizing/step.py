"""Decides the daemon's next step towards other GPU memory that a pod wishes for. It remembers nothing.

These rules keep every GPU within what it has, whichever program stops at whichever point:

- The extender alone writes what a pod holds (`hami.io/vgpu-devices-allocated`), and counts it.
- The driver's limits are never above that.
- The answer `ready` promises that they are not above the wish either. Only then the extender writes smaller amounts.
- So the answer goes before a limit is raised above what it promises. The wish may be the same again by then.
- An answer is there before a limit is lowered, until all are what the pod holds: a pod without one is not looked at.
- The answer `ready` comes after the limits were read back, and when no container uses more than it shall have.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from deviceplugin.allocation.decision import decided_devices
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED, MEMORY_RESIZE, MEMORY_WISH
from proto.annotations.memory_resize import ResizeAnswer, ResizeState, answer_in, smaller, wished
from proto.devices import ContainerShares, DeviceUUID, PodShares
from proto.kubernetes.objects import Pod

_MIB = 1 << 20
LimitsMib = Mapping[DeviceUUID, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLook:
    """One look at a pod. `containers` and `shares`, what they hold, have one entry for each container."""

    wish: str
    answer: ResizeAnswer | None
    containers: Sequence[str]
    shares: PodShares
    problem: str = ""
    """The reason why it is unknown what they hold; empty if it is known."""
    running: Set[str] = frozenset()
    """The containers that run, by the pod's status."""
    expected: Set[str] = frozenset()
    """The containers that the driver limits, or will once their control groups are known."""
    held: Mapping[str, LimitsMib] = field(default_factory=dict)
    """The limits of each container whose control group is known."""
    used_bytes: Mapping[str, Mapping[DeviceUUID, int]] = field(default_factory=dict)
    """The use of each container's GPUs, read together with limits that hold; none where they do not."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The reason why the driver did not take the limits of a container in this look."""

    @property
    def is_answered(self) -> bool:
        """Returns whether the answer is one to this wish."""
        return self.answer is not None and self.answer.wish == self.wish

    @property
    def state(self) -> ResizeState | None:
        """Returns how far this wish has come; None if there is no answer to it."""
        return self.answer.state if self.answer is not None and self.is_answered else None

    def using(self, used_bytes: Mapping[str, Mapping[DeviceUUID, int]]) -> "PodLook":
        return replace(self, used_bytes=used_bytes)


@dataclass(frozen=True, slots=True)
class SetLimits:
    """The driver gets these limits for the container, and they are read back."""

    container: str
    limits_mib: LimitsMib


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The pod gets this answer, if nothing of it has changed since the look; None takes it away."""

    answer: ResizeAnswer | None


Step = SetLimits | WriteAnswer | None
"""None: nothing until something changes, or the next look."""

_OPEN = frozenset({ResizeState.SHRINKING, ResizeState.READY, ResizeState.GROWING})
_ALREADY = "it has these amounts already"
_TAKEN_BACK = "the wish was taken back"


def next_step(look: PodLook) -> Step:
    """Returns the next step."""
    look = _of_own_gpus(look)
    if look.answer is not None and not look.is_answered and look.answer.state in _OPEN:
        # Some answer stays until the limits are what the pod holds: by it the pod is looked at.
        return _answer(look, ResizeState.SHRINKING) if look.wish else _answer(look, ResizeState.REFUSED, _TAKEN_BACK)
    if look.problem:
        return _without_shares(look)
    is_over = look.state is not None and look.state not in _OPEN
    return _settled(look) if is_over or not look.wish else _under_way(look)


def _of_own_gpus(look: PodLook) -> PodLook:
    """Returns the look without the containers that the driver limits on other GPUs than the pod's annotation names: it
    was changed after they got theirs.
    """
    named = {name: {share.uuid for share in held} for name, held in zip(look.containers, look.shares, strict=False)}
    moved = {name for name, limits in look.held.items() if limits.keys() != named.get(name, limits.keys())}
    held = {name: limits for name, limits in look.held.items() if name not in moved}
    return replace(look, held=held, expected=look.expected - moved)


def _settled(look: PodLook) -> Step:
    """Returns the step of a pod whose containers are to have what they hold."""
    step = _set_next(look, look.shares)
    is_over = not look.failed and look.expected <= look.held.keys()
    return WriteAnswer(None) if step is None and is_over and not look.wish and look.answer is not None else step


def _under_way(look: PodLook) -> Step:
    try:
        wanted = wished(look.wish, look.containers, look.shares)
    except AnnotationError as error:
        return _answer(look, ResizeState.REFUSED, str(error))
    changing = [name for name, one, other in zip(look.containers, look.shares, wanted, strict=True) if one != other]
    unheld = [name for name in changing if name not in look.held]
    strangers = [name for name in unheld if name in look.running and name not in look.expected]
    if strangers:
        return _answer(look, ResizeState.REFUSED, _why_not_held(strangers[0]))
    if unheld:
        return None
    if not look.is_answered and smaller(look.shares, wanted) != look.shares:
        return _answer(look, ResizeState.SHRINKING)
    return _set_next(look, smaller(look.shares, wanted)) or _answered(look, wanted)


def is_looked_at(annotations: Mapping[str, str]) -> bool:
    """Returns whether a pod with these annotations is looked at."""
    return MEMORY_WISH in annotations or MEMORY_RESIZE in annotations


def needs_use(look: PodLook) -> bool:
    """Returns whether the next step depends on what the containers use."""
    return bool(look.wish) and look.state in (None, ResizeState.SHRINKING)


def served(answer: ResizeAnswer | None, containers: Sequence[str], shares: PodShares) -> PodShares:
    """Returns what containers that start now get of what they hold: no more than an open answer allows, because the
    extender may be about to write less.
    """
    if answer is None or answer.state not in _OPEN:
        return shares
    try:
        return smaller(shares, wished(answer.wish, containers, shares))
    except AnnotationError:
        return shares


def _without_shares(look: PodLook) -> Step:
    if not look.wish:
        return WriteAnswer(None) if look.answer is not None else None
    return None if look.state is ResizeState.REFUSED else _answer(look, ResizeState.REFUSED, look.problem)


def _set_next(look: PodLook, wanted: PodShares) -> SetLimits | None:
    """Returns the first limits that differ from these; of those that the driver did not take, none in this look."""
    for name, shares in zip(look.containers, wanted, strict=True):
        limits = {share.uuid: share.memory_mib for share in shares}
        if name in look.held and look.held[name] != limits and name not in look.failed:
            return SetLimits(name, limits)
    return None


def _answered(look: PodLook, wanted: PodShares) -> Step:
    """Returns the answer now that all limits are as low as the wish, but for those that the driver did not take."""
    failed = next(iter(look.failed.values()), "")
    is_said = look.answer is not None and look.answer.why
    if look.state in (ResizeState.READY, ResizeState.GROWING):
        if look.state is ResizeState.READY or look.shares != wanted or (failed and is_said):
            return None
        return _answer(look, ResizeState.GROWING, failed) if failed else _answer(look, ResizeState.DONE)
    lower = _lower(look, wanted)
    if any(gpu not in look.used_bytes.get(name, {}) for name, gpu, _ in lower if name not in look.failed):
        return None  # the driver does not show it: look again
    busy = next(filter(None, (_too_much(look, *each) for each in lower)), "")
    if busy:
        why = f"{busy}; {failed}" if failed else busy
        return None if is_said else _answer(look, ResizeState.SHRINKING, why)
    if failed:
        # The use may have fallen only after the driver refused: a second refusal, with this answer, counts.
        again = look.answer is not None and look.answer.why == failed
        return _answer(look, ResizeState.REFUSED if again else ResizeState.SHRINKING, failed)
    return _answer(look, ResizeState.READY) if look.shares != wanted else _answer(look, ResizeState.DONE, _ALREADY)


def _lower(look: PodLook, wanted: PodShares) -> Sequence[tuple[str, DeviceUUID, int]]:
    """Returns container, GPU and MiB where the wish is smaller than what the container holds."""
    return [
        (name, share.uuid, share.memory_mib)
        for name, held, shares in zip(look.containers, look.shares, wanted, strict=True)
        for before, share in zip(held, shares, strict=True)
        if share.memory_mib < before.memory_mib
    ]


def _too_much(look: PodLook, container: str, gpu: DeviceUUID, mib: int) -> str:
    used = look.used_bytes.get(container, {}).get(gpu, 0)
    if used <= mib * _MIB:
        return ""
    return (
        f"container {container} uses {-(-used // _MIB)} MiB of {gpu}, and shall have {mib} MiB; it gets no more until "
        "it has given that back"
    )


def _answer(look: PodLook, state: ResizeState, why: str = "") -> WriteAnswer:
    return WriteAnswer(ResizeAnswer(wish=look.wish, state=state, why=why))


def _why_not_held(container: str) -> str:
    return (
        f"the driver does not limit the GPU memory of container {container}, which has whole GPUs or MIG instances, is "
        f"held by HAMi-core, or has other GPUs than {DEVICES_ALLOCATED} names: only what the driver holds can change "
        "while the container runs"
    )


def size_now(
    pod: Pod, position: int, proven: ContainerShares, resource: str, before: LimitsMib | None
) -> ContainerShares:
    """Returns what the container at this position of the pod gets of what it was proven to hold. `before` are its last
    limits, for a pod that may be older than these.
    """
    annotations = pod.metadata.annotations
    try:
        shares = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return proven
    names = [container.name for container in pod.all_containers]
    least = {share.uuid: share.memory_mib for share in served(answer_in(annotations), names, shares)[position]}
    for limits in (least, before or {}):
        proven = tuple(
            replace(share, memory_mib=min(share.memory_mib, limits.get(share.uuid, share.memory_mib)))
            for share in proven
        )
    return proven
