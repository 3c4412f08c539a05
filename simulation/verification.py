"""Verifies that every container has exactly what was decided, and that no GPU was ever over-booked.

Written apart from the scheduler's own accounting on purpose: it reads annotations and what containers got.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED, RESOURCE_COUNT
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import ContainerShares, Device, DeviceShare, DeviceUUID, PairScores, PodShares
from proto.environment import CORE_LIMIT, VISIBLE_DEVICES
from proto.kubernetes.objects import Pod
from proto.quantity import integer_quantity
from simulation.kubelet.container import CreatedContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The use of one GPU."""

    replicas: int = 0
    memory_mib: int = 0
    cores: int = 0

    def plus(self, other: "Load") -> "Load":
        return Load(
            replicas=self.replicas + other.replicas,
            memory_mib=self.memory_mib + other.memory_mib,
            cores=self.cores + other.cores,
        )

    def at_least(self, other: "Load") -> "Load":
        return Load(
            replicas=max(self.replicas, other.replicas),
            memory_mib=max(self.memory_mib, other.memory_mib),
            cores=max(self.cores, other.cores),
        )


def decided_shares(pod: Pod) -> PodShares:
    """Returns the shares in the annotation of the pod's containers, init containers first. Raises AnnotationError."""
    count = len(pod.spec.init_containers) + len(pod.spec.containers)
    return decode_pod_devices(DEVICES_ALLOCATED, pod.metadata.annotations.get(DEVICES_ALLOCATED, ""), count)


def has_decision(pod: Pod) -> bool:
    return bool(pod.spec.node_name and pod.metadata.annotations.get(DEVICES_ALLOCATED))


def granted_shares(container: CreatedContainer) -> ContainerShares:
    """Returns what the container's environment lets it use. Raises ValueError where that cannot be read."""
    uuids = [uuid for uuid in container.env.get(VISIBLE_DEVICES, "").split(",") if uuid]
    return tuple(_granted(container.env, position, uuid) for position, uuid in enumerate(uuids))


def container_violations(pod: Pod, created: Sequence[CreatedContainer]) -> list[str]:
    """Returns sentences for every container that differs from its pod's annotation."""
    name = f"pod {pod.metadata.name}"
    try:
        decided = decided_shares(pod)
    except AnnotationError as error:
        return [f"{name}: {error}"]
    specified = pod.all_containers
    made = {container.name: container for container in created}
    problems = []
    for container, shares in zip(specified, decided, strict=True):
        where = f"{name}, container {container.name}"
        asked = integer_quantity(container.resources.limits.get(RESOURCE_COUNT, 0))
        if len(shares) != asked:
            problems.append(f"{where}: asked for {asked} GPUs, the annotation names {len(shares)}")
        if container.name not in made:
            problems.append(f"{where}: was never created")
        else:
            problems += [f"{where}: {problem}" for problem in _differences(shares, made[container.name])]
    return problems


def load_of_pod(shares: PodShares, init_containers: int) -> dict[str, Load]:
    """Init containers run one by one before the app containers: the larger of both counts, per GPU."""
    load: dict[str, Load] = defaultdict(Load)
    for container in shares[init_containers:]:
        for share in container:
            load[share.uuid] = load[share.uuid].plus(_load(share))
    for container in shares[:init_containers]:
        for share in container:
            load[share.uuid] = load[share.uuid].at_least(_load(share))
    return dict(load)


def total_load(pods: Iterable[Pod]) -> dict[str, Load]:
    """Returns totals per GPU over all bound pods that have not ended; `container_violations` reports unreadable
    annotations.
    """
    total: dict[str, Load] = defaultdict(Load)
    for pod in pods:
        if not has_decision(pod) or pod.has_ended:
            continue
        try:
            shares = decided_shares(pod)
        except AnnotationError:
            continue
        for uuid, load in load_of_pod(shares, len(pod.spec.init_containers)).items():
            total[uuid] = total[uuid].plus(load)
    return dict(total)


def capacity_violations(loads: Mapping[str, Load], devices: Mapping[str, Device]) -> list[str]:
    """Returns sentences for every GPU that is unknown or over its replicas, memory or cores."""
    problems = []
    for uuid, load in sorted(loads.items()):
        device = devices.get(uuid)
        if device is None:
            problems.append(f"GPU {uuid}: handed out, but no node has it")
            continue
        for what, used, limit in (
            ("replicas", load.replicas, device.replicas),
            ("MiB", load.memory_mib, device.memory_mib),
            ("cores", load.cores, device.cores),
        ):
            if used > limit:
                problems.append(f"GPU {uuid}: {used} of {limit} {what} handed out")
    return problems


def score_violations(node: str, published: PairScores, described: PairScores) -> list[str]:
    """Sentences for every pair of GPUs whose published score is not the one its machine description comes to."""
    known = {(first, second) for scores in (published, described) for first, row in scores.items() for second in row}
    problems = []
    for first, second in sorted(known):
        said, true = (scores.get(first, {}).get(second) for scores in (published, described))
        if said != true:
            problems.append(f"{node}: score of {first} to {second} is published as {said}, the machine has {true}")
    return problems


def _load(share: DeviceShare) -> Load:
    return Load(replicas=1, memory_mib=share.memory_mib, cores=share.cores)


def _granted(env: Mapping[str, str], position: int, uuid: str) -> DeviceShare:
    memory = env.get(f"CUDA_DEVICE_MEMORY_LIMIT_{position}", "")
    cores = env.get(f"{CORE_LIMIT}_{position}", env.get(CORE_LIMIT, "0"))
    if not (memory.endswith("m") and memory[:-1].isdigit()):
        raise ValueError(f"memory limit {position} reads {memory!r}")
    if not cores.isdigit():
        raise ValueError(f"core limit {position} reads {cores!r}")
    return DeviceShare(uuid=DeviceUUID(uuid), memory_mib=int(memory[:-1]), cores=int(cores))


def _differences(decided: ContainerShares, container: CreatedContainer) -> list[str]:
    try:
        granted = granted_shares(container)
    except ValueError as error:
        return [str(error)]
    by_uuid = {share.uuid: share for share in granted}
    problems = []
    if sorted(by_uuid) != sorted(share.uuid for share in decided) or len(granted) != len(decided):
        problems.append(f"decided {[share.uuid for share in decided]}, got {[share.uuid for share in granted]}")
    for share in decided:
        got = by_uuid.get(share.uuid)
        if got is not None and got != share:
            problems.append(
                f"GPU {share.uuid}: decided {share.memory_mib} MiB and {share.cores} % of cores, "
                f"got {got.memory_mib} MiB and {got.cores} %"
            )
    return problems
