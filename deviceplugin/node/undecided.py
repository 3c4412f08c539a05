"""The GPUs that kubelet gave to pods without a decision: bound without the extender, or before it was installed.

Kubelet's checkpoint names a pod by its UID and has an entry of each of its containers as soon as it is admitted. A pod
is named only when all of it is known, and when its ids are the GPUs that its containers were given.
"""

import base64
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from deviceplugin.allocation.decision import gpus_requested, has_begun, lives
from deviceplugin.container.cdi import slot_in
from deviceplugin.records.holdings import Holding
from deviceplugin.replicas import split_replica
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.undecided_pods import Given
from proto.devices import DeviceUUID
from proto.environment import VISIBLE_DEVICES
from proto.kubernetes.objects import Pod

_DEVICE = re.compile(rb"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_undecided(pod: Pod, resource: str) -> bool:
    """Returns whether a pod requests GPUs, has not ended, and has no decision, readable or not."""
    return (
        not pod.metadata.annotations.get(DEVICES_ALLOCATED)
        and lives(pod)
        and any(gpus_requested(container, resource) for container in pod.all_containers)
    )


def known_of(
    pods: Iterable[Pod], recorded: Sequence[Holding], gpus: Collection[DeviceUUID], resource: str
) -> Mapping[str, Given]:
    """Returns replicas by GPU for each pod, by UID, if everything about it is known. `gpus` are those of the node."""
    found = {pod.metadata.uid: _given(pod, recorded, gpus, resource) for pod in pods}
    return {uid: given for uid, given in found.items() if given}


def _given(pod: Pod, recorded: Sequence[Holding], gpus: Collection[DeviceUUID], resource: str) -> Given:
    """Returns nothing if something is unknown, or if the pod's own environment names GPUs, which overrides kubelet's
    choice.
    """
    entries = {
        entry.container_name: entry
        for entry in recorded
        if entry.pod_uid == pod.kubelet_uid and entry.resource_name == resource
    }
    ids: set[str] = set()
    begun = has_begun(pod)
    if begun and any(variable.name == VISIBLE_DEVICES for each in pod.all_containers for variable in each.env):
        return {}
    for container in pod.all_containers:
        requested, entry = gpus_requested(container, resource), entries.get(container.name)
        if not requested:
            continue
        if entry is None or len(entry.ids) != requested or not _is_served_by_ids(entry, begun=begun):
            return {}
        ids |= entry.ids
    given = Counter(split_replica(identifier)[0] for identifier in ids)
    return given if given.keys() <= set(gpus) else {}


def _is_served_by_ids(entry: Holding, *, begun: bool) -> bool:
    """Returns whether the container has exactly the GPUs of its ids: ours gets the decided ones, whatever its ids are.

    One that waits for its slot has none yet, and gets none without a decision.
    """
    if slot_in(entry.cdi_devices):
        return not begun
    try:
        answer = base64.b64decode(entry.answer or "", validate=True)
    except ValueError:
        return False
    named = {DeviceUUID(found.decode()) for found in _DEVICE.findall(answer)}
    return named <= {split_replica(identifier)[0] for identifier in entry.ids}
