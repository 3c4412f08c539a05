"""Checks whether an Allocate answer that kubelet keeps still enforces a container's share when it starts again.

Kubelet uses an answer as long as its pod lives, even one from an earlier daemon. If a file in the answer is missing,
containerd creates an empty folder instead. Slots name no files.
"""

from collections.abc import Iterator, Mapping, Sequence

from deviceplugin.allocation.decision import decided_devices
from deviceplugin.container.cdi import slot_in
from deviceplugin.container.edits import PRELOAD_LIST, NoHamiCore, container_facts
from deviceplugin.container.hami_core import damage
from deviceplugin.container.limits import Backends, enforcement
from deviceplugin.records.checkpoint import Holding
from deviceplugin.settings import AgentSettings, UnenforcedShares
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Pod


def why_unlimited(
    ids: Sequence[str],
    holdings: Sequence[Holding],
    pods: Mapping[str, Pod],
    inventory: Mapping[DeviceUUID, Device],
    *,
    settings: AgentSettings,
    resource: str,
) -> str:
    """Returns why the answer for these ids enforces no limits, as a sentence; empty if it does. Blocks.

    `pods` by UID.
    """
    for holding in answers_to(ids, holdings, resource):
        damaged = damage(holding.mounts, settings.hook_path)
        is_free = bool(holding.answer) and settings.unenforced_shares is UnenforcedShares.REFUSE
        if sentence := damaged or (_never_limited(holding, pods, inventory, resource) if is_free else ""):
            return sentence
    return ""


def answers_to(ids: Sequence[str], holdings: Sequence[Holding], resource: str) -> Iterator[Holding]:
    """Yields the records of containers that hold exactly these ids and were not answered with a slot."""
    held = frozenset(ids)
    for holding in holdings:
        if holding.ids == held and holding.resource_name == resource and not slot_in(holding.cdi_devices):
            yield holding


def _never_limited(
    holding: Holding, pods: Mapping[str, Pod], inventory: Mapping[DeviceUUID, Device], resource: str
) -> str:
    """Judges an answer that was given while containers without limits were allowed."""
    pod = pods.get(holding.pod_uid)
    if pod is None or PRELOAD_LIST in holding.mounts:
        return ""
    try:
        decided = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return ""
    for container, shares in zip(pod.all_containers, decided, strict=True):
        if container.name == holding.container_name and all(share.uuid in inventory for share in shares):
            facts = container_facts(pod.metadata.uid, container, "")
            missing = NoHamiCore("it was not there when the pod was admitted; delete the pod")
            found = Backends(hami_core=missing, no_driver="it holds containers with slots alone")
            return enforcement(shares, inventory, facts, found).problem
    return ""
