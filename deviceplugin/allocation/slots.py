"""Slots: CDI devices `topogpu.io/slot=<name>` that Allocate answers with, and so commits to nothing.

Each Allocate draws a name of its own, which kubelet's checkpoint remembers for as long as the container has its GPUs.
No name ever stands for two containers, so nothing that a container runtime has read before can be another's. A slot is
defined from the moment its holder is proven, at each start of the container, until the container has been created.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from deviceplugin.container.cdi import spec_file_name
from deviceplugin.container.edits import NO_DEVICES, ContainerEdits
from proto.devices import ContainerShares, DeviceShare
from proto.environment import VISIBLE_DEVICES
from proto.kubernetes.objects import Pod

SLOT_KIND = "topogpu.io/slot"
SPEC_FILE = spec_file_name(SLOT_KIND)
TRIAL_FILE = ".topogpu-trial"
"""Written and removed again, to see whether the folder takes specs."""
NOT_APPLIED = "topogpu-slot-not-applied"
"""What NVIDIA_VISIBLE_DEVICES says until the slot's spec replaces it. NVIDIA's runtime knows no such device and refuses
the container, in its legacy mode as in its CDI mode; other runtimes show no GPU for it.
"""
_PREFIX = f"{SLOT_KIND}="
_HASH_LENGTH = 32
_BEFORE, _AFTER = spec_file_name(SLOT_KIND, "/").split("/")
KEPT_SECONDS = 150.0
"""Kubelet gives the container runtime two minutes to create a container; then it asks again."""

_SETTLED_SECONDS = 2.0
"""Before that, another container id may be that of the life before, which the watch has told late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A container that is about to be created. `known_id` is the container id that its pod's status had by then."""

    pod_uid: str
    container: str
    known_id: str
    since: float
    """Monotonic seconds."""


def qualified(slot: str) -> str:
    """The slot as runtimes name it."""
    return f"{_PREFIX}{slot}"


def slot_in(cdi_devices: Sequence[str]) -> str:
    """The slot that an answer of Allocate names; empty without one."""
    return next((name.removeprefix(_PREFIX) for name in cdi_devices if name.startswith(_PREFIX)), "")


def named(slot: str) -> ContainerEdits:
    """What Allocate answers: by itself it shows no GPU, whatever environment the image has."""
    return ContainerEdits(env={VISIBLE_DEVICES: NOT_APPLIED}, cdi_devices=(qualified(slot),))


def applied(edits: ContainerEdits) -> ContainerEdits:
    """What the slot's spec does: these edits, and in any case another value than Allocate answered."""
    return replace(edits, env={VISIBLE_DEVICES: NO_DEVICES, **edits.env})


def is_spec_of_one_slot(name: str) -> bool:
    """A file that an earlier release wrote, which had one for every slot."""
    slot = name.removeprefix(_BEFORE).removesuffix(_AFTER)
    return name == spec_file_name(SLOT_KIND, slot) and len(slot) == _HASH_LENGTH


def over(starts: Mapping[str, Start], pods: Mapping[str, Pod], now: float) -> frozenset[str]:
    """The slots whose containers have been created, or will not be: kubelet would ask again."""
    return frozenset(
        slot
        for slot, start in starts.items()
        if now - start.since >= KEPT_SECONDS
        or (
            now - start.since >= _SETTLED_SECONDS
            and start.pod_uid in pods
            and container_id(pods[start.pod_uid], start.container) != start.known_id
        )
    )


def container_id(pod: Pod, container: str) -> str:
    """Of the container's last life that the pod's status tells of; empty before the first."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return next((each.container_id for each in statuses if each.name == container), "")


def larger(sharing: Collection[ContainerShares]) -> ContainerShares:
    """Of every GPU the larger limits that any container of a slot has. All have the same GPUs.

    Only containers that an earlier release gave their slots may share one.
    """
    first, *_ = sharing
    by_uuid = [{share.uuid: share for share in shares} for shares in sharing]
    return tuple(_larger([shares[share.uuid] for shares in by_uuid]) for share in first)


def _larger(shares: Sequence[DeviceShare]) -> DeviceShare:
    """0 is the largest: the whole memory, and no limit of cores."""
    memory, cores = [share.memory_mib for share in shares], [share.cores for share in shares]
    return DeviceShare(
        uuid=shares[0].uuid,
        memory_mib=max(memory) if all(memory) else 0,
        cores=max(cores) if all(cores) else 0,
        instance=shares[0].instance,
    )
