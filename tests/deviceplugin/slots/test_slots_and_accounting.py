"""What the extender decides and books for a pod against what the slots of its containers let them use."""

from collections.abc import Mapping

from deviceplugin.records.holdings import Holding
from deviceplugin.slots.proof import Evidence, ProvenPod, prove_slot
from proto.devices import ContainerShares, DeviceUUID, PodShares
from proto.kubernetes.objects import Resources
from scheduler_ext.cluster.accounting import Footprint, effective
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.place import place
from scheduler_ext.policies import parse_gpu_policy
from scheduler_ext.requests import RequestSettings, container_kinds, read_request
from tests.deviceplugin.gpus import INVENTORY, NODE, PAIR, A, B, bound_pod
from tests.deviceplugin.slots.slot_rig import as_recorded

GPU = "nvidia.com/gpu"
X, Y = f"{A}-0", f"{B}-0"


def decided(*memory_mib: int, taken_mib: int) -> PodShares:
    """By the extender, for an init container and app containers of one GPU each; the first GPU is taken so far."""
    pod = bound_pod("p", ((),) * len(memory_mib), init=1)
    pod.metadata.annotations = {}
    for container, mib in zip(pod.all_containers, memory_mib, strict=True):
        container.resources = Resources(limits={GPU: "1", "nvidia.com/gpumem": str(mib)})
    request = read_request(pod, RequestSettings(gpu_policy=parse_gpu_policy("binpack")))
    assert request is not None
    usage = (GpuUsage(PAIR[0], replicas=1, memory_mib=taken_mib), GpuUsage(PAIR[1]))
    shares = place(request, NodeUsage(node=RegisteredNode(name=NODE, devices=PAIR), gpus=usage), None)
    assert isinstance(shares, tuple), shares
    return shares


def given(shares: PodShares, held: Mapping[str, str]) -> Mapping[str, ContainerShares]:
    """By the daemon, to every container that kubelet gave this id."""
    pod = bound_pod("p", shares, init=1)
    recorded = tuple(
        Holding(
            pod_uid=pod.metadata.uid,
            container_name=name,
            resource_name=GPU,
            device_ids={"-1": [identifier]},
            answer=as_recorded(name),
        )
        for name, identifier in held.items()
    )
    evidence = Evidence(node=NODE, resource=GPU, pods=(pod,), inventory=INVENTORY, listed=None, recorded=recorded)
    proofs = {name: prove_slot(frozenset({identifier}), evidence) for name, identifier in held.items()}
    assert all(isinstance(proof, ProvenPod) for proof in proofs.values()), proofs
    return {slot.name: slot.shares for proof in proofs.values() if isinstance(proof, ProvenPod) for slot in proof.slots}


def test_every_container_gets_what_was_decided_for_it_also_with_the_ids_of_another() -> None:
    shares = decided(20000, 5000, 9000, taken_mib=30000)
    slots = given(shares, {"c0": X, "c1": X, "c2": Y})
    assert (slots["c0"], slots["c1"], slots["c2"]) == shares


def test_a_pod_is_never_given_more_than_was_booked_for_it() -> None:
    shares = decided(20000, 5000, 9000, taken_mib=0)
    slots = given(shares, {"c0": X, "c1": X, "c2": Y})
    kinds = container_kinds(bound_pod("p", shares, init=1))
    running: dict[DeviceUUID, Footprint] = {}
    for share in (*slots["c1"], *slots["c2"]):
        more = Footprint(1, share.memory_mib, share.cores)
        running[share.uuid] = running.get(share.uuid, Footprint()) + more
    booked = effective(kinds, shares)
    assert all(booked[share.uuid].memory_mib >= share.memory_mib for share in slots["c0"])
    assert all(booked[uuid].memory_mib >= held.memory_mib for uuid, held in running.items())
    assert {uuid: held.memory_mib for uuid, held in booked.items()} == {A: 20000}
