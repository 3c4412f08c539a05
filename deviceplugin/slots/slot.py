"""Slots: CDI devices `topogpu.io/slot=<name>`. Allocate answers with one, and so commits to no GPU yet.

Each Allocate draws a new name, which kubelet's checkpoint keeps as long as the container has its GPUs. No name is ever
used for two containers, so nothing that a runtime has cached belongs to another one. At each start of the container,
the slot is defined from the proof until the container is created.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deviceplugin.container.cdi import SLOT_KIND, qualified, spec_file_name
from deviceplugin.container.edits import ContainerEdits, DeviceNode, Mount
from proto.environment import VISIBLE_DEVICES, VOID
from proto.kubernetes.objects import Pod

SPEC_FILE = spec_file_name(SLOT_KIND)
TRIAL_FILE = ".topogpu-trial"
"""Written and removed again, to see whether the folder takes specs."""
NOT_APPLIED = "topogpu-slot-not-applied"
"""The value of NVIDIA_VISIBLE_DEVICES until the slot's spec replaces it. NVIDIA's runtime has no such device and
refuses the container, in legacy mode and in CDI mode; other runtimes show no GPU for it.
"""
KEPT_SECONDS = 150.0
"""Seconds that a slot is kept: kubelet gives the container runtime two minutes, and then calls again."""

_SETTLED_SECONDS = 2.0
"""Seconds in which another container id may still be the one before, because the watch was late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A container that is about to be created. `known_id` is the container id that its pod's status had by then."""

    pod_uid: str
    container: str
    known_id: str
    since: float
    """Monotonic seconds."""


def named(slot: str) -> ContainerEdits:
    """Returns the answer of Allocate: alone it shows no GPU, whatever environment the image has."""
    return ContainerEdits(env={VISIBLE_DEVICES: NOT_APPLIED}, cdi_devices=(qualified(slot),))


def applied(edits: ContainerEdits) -> ContainerEdits:
    """Returns the edits of the slot's spec: these, and always another value than Allocate answered."""
    return replace(edits, env={VISIBLE_DEVICES: VOID, **edits.env})


def refused(problem: str, driver_mounts: tuple[Mount, ...]) -> ContainerEdits:
    """Returns the edits of a slot whose container must not be created: the runtime looks for a device file that has the
    problem as its name, and quotes that name in its error.
    """
    missing = DeviceNode(path=f"/{problem}")
    return ContainerEdits(env={VISIBLE_DEVICES: VOID}, devices=(missing,), driver_mounts=driver_mounts)


def over(starts: Mapping[str, Start], pods: Mapping[str, Pod], now: float) -> frozenset[str]:
    """Returns the slots whose containers have been created, or will not be without another call of kubelet."""
    return frozenset(
        slot
        for slot, start in starts.items()
        if now - start.since >= KEPT_SECONDS
        or (
            now - start.since >= _SETTLED_SECONDS
            and start.pod_uid in pods
            and pods[start.pod_uid].container_id(start.container) != start.known_id
        )
    )
