"""What containers really got, against the annotations of whoever decided: read apart from both programs."""

from collections import defaultdict
from collections.abc import Sequence

from proto.annotations import keys
from proto.annotations.node_register import decode_register
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import ContainerShares, Device
from proto.kubernetes.objects import Pod
from simulation.kubelet.container import CreatedContainer
from simulation.verification import Load, capacity_violations, granted_shares, load_of_pod
from tests.hami.cluster import Lab


async def wrong(lab: Lab) -> list[str]:
    """A sentence for every running pod whose containers differ from its annotation, and for every GPU that the running
    containers together overbook.
    """
    problems = list(lab.view.overbooked)
    loads: dict[str, Load] = defaultdict(Load)
    for pod in (await lab.tenants()).values():
        if not pod.is_running:
            continue
        made = lab.nodes[pod.spec.node_name].kubelet.created[pod.metadata.uid]
        problems += _differences(pod, made)
        latest = {container.name: container for container in made}
        shares = tuple(granted_shares(latest[container.name]) for container in pod.all_containers)
        for uuid, load in load_of_pod(shares, len(pod.spec.init_containers)).items():
            loads[uuid] = loads[uuid].plus(load)
    devices: dict[str, Device] = {
        device.uuid: device
        for name in lab.nodes
        for device in decode_register((await lab.annotations(name)).get(keys.NODE_REGISTER, "[]"))
    }
    return problems + capacity_violations(loads, devices)


def _differences(pod: Pod, made: Sequence[CreatedContainer]) -> list[str]:
    """HAMi leaves out the entries of containers without GPUs, at the end and in between; ours are always there."""
    entries = decode_pod_devices(keys.DEVICES_ALLOCATED, pod.metadata.annotations[keys.DEVICES_ALLOCATED])
    decided = [shares for shares in entries if shares]
    asking = [one.name for one in pod.all_containers if keys.RESOURCE_COUNT in one.resources.limits]
    granted = [(one.name, granted_shares(one)) for one in made if one.name in asking]
    if len(decided) != len(asking):
        return [f"{pod.metadata.name}: {len(asking)} containers ask for GPUs, {len(decided)} were decided"]
    expected = dict(zip(asking, map(_sorted, decided), strict=True))
    return [
        f"{pod.metadata.name}/{name}: decided {expected[name]}, got {_sorted(shares)}"
        for name, shares in granted
        if _sorted(shares) != expected[name]
    ]


def _sorted(shares: ContainerShares) -> list[tuple[str, int, int]]:
    return sorted((share.uuid, share.memory_mib, share.cores) for share in shares)
