"""The NUMA nodes as the Node shows them, and the ones that have room. Pure."""

from collections.abc import Collection, Iterable, Mapping

from deviceplugin.alignment.kubelet_configuration import KubeletAlignment
from deviceplugin.allocation.capacity import Holds, TakenPart
from deviceplugin.records.checkpoint import Holding
from deviceplugin.records.listed import ExclusiveCpus
from proto.annotations.node_numa import MOST_ZONES, NodeNuma, ZoneCpus
from proto.devices import UNKNOWN_NUMA, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Pod

_NO_ZONE = "-1"
"""The key of kubelet's checkpoint for replicas that it got without a NUMA node."""


def node_numa(
    kubelet: KubeletAlignment,
    cpus_of_zone: Mapping[int, Collection[int]],
    cpus: ExclusiveCpus | None,
    closed: Collection[int],
) -> NodeNuma:
    """Returns what the Node shows. `cpus` is None while kubelet does not answer."""
    zones: dict[int, ZoneCpus] = {}
    own = {zone: frozenset(has) for zone, has in cpus_of_zone.items() if has}
    if kubelet.pins and kubelet.topology_manager_policy.refuses and cpus is not None and 1 < len(own) <= MOST_ZONES:
        free = cpus.all - cpus.of_others
        zones = {
            zone: ZoneCpus(cpus=len(has), free=len(has & free), closed=zone in closed) for zone, has in own.items()
        }
    return NodeNuma(policy=kubelet.topology_manager_policy, scope=kubelet.topology_manager_scope, zones=zones)


def is_served(pod: Pod, shares: PodShares, served: Collection[str]) -> bool:
    """Returns whether kubelet has given replicas to each of the pod's containers that have shares."""
    return all(each.name in served for each, held in zip(pod.all_containers, shares, strict=False) if held)


def closed_zones(devices: Iterable[Device], holders: Iterable[Holds]) -> frozenset[int]:
    """Returns the NUMA nodes that have GPUs, but none with room for one more container."""
    taken: dict[DeviceUUID, TakenPart] = {}
    for held in holders:
        for uuid, part in held.items():
            taken[uuid] = taken.get(uuid, TakenPart()) + part
    zones, roomy = set[int](), set[int]()
    for device in devices:
        if device.numa != UNKNOWN_NUMA:
            zones.add(device.numa)
            part = taken.get(device.uuid, TakenPart())
            if device.healthy and part.memory_mib < device.memory_mib and (part.cores < device.cores or not part.cores):
                roomy.add(device.numa)
    return frozenset(zones - roomy)


def held_zones(holdings: Iterable[Holding], resource: str) -> Mapping[str, frozenset[int]]:
    """Returns the NUMA nodes with which kubelet recorded each held replica; an empty set for a replica without one."""
    found: dict[str, frozenset[int]] = {}
    for holding in holdings:
        if holding.resource_name == resource:
            for zone, ids in (holding.device_ids or {}).items():
                own = frozenset[int]() if zone == _NO_ZONE else frozenset({int(zone)})
                for each in ids or ():
                    found[each] = found.get(each, frozenset()) | own
    return found
