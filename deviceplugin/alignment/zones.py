"""The NUMA nodes as the Node shows them, the ones that have room, and those closed to kubelet. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from deviceplugin.alignment.kubelet_configuration import KubeletAlignment
from deviceplugin.allocation.decision import Holds, TakenPart, lives
from deviceplugin.records.holdings import ExclusiveCpus, Holding
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_NUMA
from proto.annotations.node_numa import LARGEST_NUMBER, MOST_ZONES, NodeNuma, TopologyScope, ZoneCpus, decode_numa
from proto.devices import UNKNOWN_NUMA, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Node, Pod

QUIET_SECONDS = 1.5
"""Seconds for which the Node shows the change before it is made: decisions of before arrive by then."""
TAKEN_SECONDS = 0.5
"""Seconds that kubelet has for taking new hints: it does not answer them."""


@dataclass(frozen=True, slots=True)
class Leading:
    """Closing and opening NUMA nodes to kubelet: the extender must expect what kubelet will do.

    | state | the Node shows | kubelet's hints | the extender |
    |---|---|---|---|
    | steady | `closed` | without `closed` | expects kubelet on the other NUMA nodes |
    | changing | `closed`, `changing` | without `closed` | sends no pod with CPUs of its own |
    | made, after a while in which kubelet has admitted every pod | `changing` | without the new ones | the same |
    | steady again, once kubelet has the hints | the new ones | without the new ones | as above |

    `closed` are the NUMA nodes to which kubelet is not led, and `wanted` those that shall be."""

    closed: frozenset[int] = frozenset()
    wanted: frozenset[int] = frozenset()
    shown_since: float | None = None
    """The time from which on the Node was seen to show that this changes."""

    made_at: float | None = None
    """The time at which kubelet was sent the hints of a change."""

    @property
    def is_changing(self) -> bool:
        return self.wanted != self.closed or self.made_at is not None


def next_leading(
    state: Leading, wanted: frozenset[int] | None, *, is_shown: bool, is_settled: bool, now: float
) -> Leading:
    """Returns the next state. `wanted` is None where the Node shows no NUMA nodes: the extender expects nothing, and
    all are open at once. `is_shown`: the Node shows the change. `is_settled`: no pod waits for its admission.
    """
    if wanted is None:
        return Leading()
    if state.made_at is not None and now - state.made_at < TAKEN_SECONDS:
        return state
    if wanted == state.closed:
        return Leading(wanted, wanted)
    since = (now if state.shown_since is None else state.shown_since) if is_shown else None
    if is_settled and since is not None and now - since >= QUIET_SECONDS:
        return Leading(wanted, wanted, made_at=now)
    return Leading(state.closed, wanted, since)


_NO_ZONE = "-1"
"""The key of kubelet's checkpoint for replicas that it got without a NUMA node."""


def node_numa(
    kubelet: KubeletAlignment,
    cpus_of_zone: Mapping[int, Collection[int]],
    cpus: ExclusiveCpus | None,
    leading: Leading,
) -> NodeNuma:
    """Returns what the Node shows. `cpus` is None while kubelet does not answer."""
    zones: dict[int, ZoneCpus] = {}
    own = {zone: frozenset(has) for zone, has in cpus_of_zone.items() if has and zone <= LARGEST_NUMBER}
    if kubelet.aligns and cpus is not None and 1 < len(own) <= MOST_ZONES:
        free = cpus.all - cpus.of_others
        # With scope `pod` they are on the NUMA nodes of the pod's GPUs, where the extender counts them.
        if kubelet.topology_manager_scope is TopologyScope.CONTAINER:
            free -= cpus.without_gpus
        for zone, has in own.items():
            zones[zone] = ZoneCpus(cpus=len(has), free=len(has & free), closed=zone in leading.closed)
    return NodeNuma(
        policy=kubelet.topology_manager_policy,
        scope=kubelet.topology_manager_scope,
        zones=zones,
        changing=bool(zones) and leading.is_changing,
    )


def is_served(pod: Pod, shares: PodShares, served: Collection[str]) -> bool:
    """Returns whether kubelet has given replicas to each of the pod's containers that have shares."""
    return all(each.name in served for each, held in zip(pod.all_containers, shares, strict=False) if held)


def closed_zones(devices: Iterable[Device], holders: Iterable[Holds], free_cpus: Mapping[int, int]) -> frozenset[int]:
    """Returns the NUMA nodes with GPUs to which kubelet is not led.

    They are those none of whose GPUs has room. And those without an idle GPU, while another one has an idle GPU and as
    many free CPUs: kubelet would take the lowest one for a pod that needs a whole GPU too, and no GPU is there.
    """
    taken: dict[DeviceUUID, TakenPart] = {}
    for held in holders:
        for uuid, part in held.items():
            taken[uuid] = taken.get(uuid, TakenPart()) + part
    zones, roomy, idle = set[int](), set[int](), set[int]()
    for device in devices:
        if device.numa != UNKNOWN_NUMA:
            zones.add(device.numa)
            part = taken.get(device.uuid, TakenPart())
            if device.healthy and not part.containers:
                idle.add(device.numa)
            if device.healthy and part.memory_mib < device.memory_mib and (part.cores < device.cores or not part.cores):
                roomy.add(device.numa)
    most = max((free_cpus.get(zone, 0) for zone in idle), default=-1)
    passed = {zone for zone in zones - idle if free_cpus.get(zone, 0) <= most}
    return frozenset(zones - roomy | passed)


def shown_numa(node: Node | None) -> NodeNuma | None:
    """Returns what the Node shows; None if it shows nothing that can be read."""
    try:
        return None if node is None else decode_numa(node.metadata.annotations[NODE_NUMA])
    except (AnnotationError, KeyError):
        return None


def held_zones(
    holdings: Iterable[Holding], pods: Mapping[str, Pod] | None, resource: str
) -> Mapping[str, frozenset[int]]:
    """Returns the NUMA nodes with which kubelet recorded each held replica; an empty set for a replica without one.

    `pods` are the node's by UID, None while unknown. Kubelet frees what pods held that are gone, and leaves them in its
    record until it writes the next one.
    """
    found: dict[str, frozenset[int]] = {}
    living = None if pods is None else {pod.kubelet_uid for pod in pods.values() if lives(pod)}
    for holding in holdings:
        if holding.resource_name == resource and (living is None or holding.pod_uid in living):
            for zone, ids in (holding.device_ids or {}).items():
                own = frozenset[int]() if zone == _NO_ZONE else frozenset({int(zone)})
                for each in ids or ():
                    found[each] = found.get(each, frozenset()) | own
    return found
