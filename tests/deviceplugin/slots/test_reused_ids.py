"""Kubelet gives the ids of init containers to later containers of their pod, as many as it finds, in any order."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.records.holdings import Holding, ListedContainer
from deviceplugin.slots.proof import Evidence, ProvenPod, ProvenSlot, Unproven, prove_slot
from proto.devices import Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Pod
from simulation.kubelet.device_ids import containers_in_order
from tests.deviceplugin.gpus import INVENTORY, NODE, A, B, a100, bound_pod, share
from tests.deviceplugin.slots.slot_rig import as_recorded

GPU = "nvidia.com/gpu"
UUIDS = [DeviceUUID(f"GPU-{number:08x}-0000-0000-0000-000000000000") for number in range(4)]
FOUR = {uuid: a100(uuid, index) for index, uuid in enumerate(UUIDS)}


@st.composite
def pods(draw: st.DrawFn) -> tuple[Pod, PodShares]:
    """Any containers, decided in any way; some init containers are sidecars."""
    held = st.lists(st.sampled_from(UUIDS), min_size=1, max_size=3, unique=True)
    decided = tuple(
        tuple(share(uuid, 1000 * position + 100) for uuid in uuids)
        for position, uuids in enumerate(draw(st.lists(held, min_size=2, max_size=5)), start=1)
    )
    pod = bound_pod("p", decided, init=draw(st.integers(1, len(decided) - 1)))
    for container in pod.spec.init_containers:
        container.restart_policy = draw(st.sampled_from(["", "Always"]))
    return pod, decided


@given(pods(), st.randoms(use_true_random=False))
def test_every_container_is_proven_with_its_own_gpus_whichever_ids_kubelet_combines(
    made: tuple[Pod, PodShares], random: Random
) -> None:
    pod, decided = made
    free = [f"{uuid}-{number}" for uuid in UUIDS for number in range(10)]
    reusable: set[str] = set()
    holdings: list[Holding] = []
    for position, (container, gives_back) in enumerate(containers_in_order(pod)):
        wanted = len(decided[position])
        pool = sorted(reusable)
        ids = random.sample(pool, min(wanted, len(pool)))
        taken = random.sample(free, wanted - len(ids))
        free = [one for one in free if one not in taken]
        ids += taken
        if gives_back:
            reusable |= set(ids)
        else:
            reusable -= set(ids)
        holdings.append(
            Holding(
                pod_uid=pod.metadata.uid,
                container_name=container.name,
                resource_name=GPU,
                device_ids={"-1": ids},
                answer=as_recorded(container.name),
            )
        )
    for position, holding in enumerate(holdings):
        answer = prove_slot(holding.ids, evidence(pod, holdings, FOUR))
        assert isinstance(answer, ProvenPod), answer
        assert {slot.name: slot.shares for slot in answer.slots}[f"c{position}"] == decided[position]


def evidence(pod: Pod, holdings: Sequence[Holding], inventory: dict[DeviceUUID, Device]) -> Evidence:
    """Pod-resources leaves ordinary init containers out."""
    ordinary = {each.name for each in pod.spec.init_containers if each.restart_policy != "Always"}
    listed = tuple(
        ListedContainer(namespace="default", pod="p", container=one.container_name, ids=one.ids)
        for one in holdings
        if one.container_name not in ordinary
    )
    return Evidence(node=NODE, resource=GPU, pods=(pod,), inventory=inventory, listed=listed, recorded=tuple(holdings))


def test_an_init_container_that_has_ended_and_whose_gpu_fell_ill_is_refused_alone() -> None:
    sick = INVENTORY | {A: a100(A, 0, healthy=False)}
    ids = {"-1": [f"{A}-0"]}
    holdings = [
        Holding(pod_uid="uid-p", container_name=name, resource_name=GPU, device_ids=ids, answer=as_recorded(name))
        for name in ("c0", "c1")
    ]
    decided = ((share(A),), (share(B),))
    problem = f"pod default/p, container c0: {A} is unhealthy"
    running = bound_pod("p", decided, init=1, phase="Running")
    slots = (ProvenSlot("c0", 0, (), problem), ProvenSlot("c1", 1, decided[1]))
    assert prove_slot(frozenset(ids["-1"]), evidence(running, holdings, sick)) == ProvenPod(running, slots)
    answer = prove_slot(frozenset(ids["-1"]), evidence(bound_pod("p", decided, init=1), holdings, sick))
    assert isinstance(answer, Unproven)
    assert answer.sentence.endswith(problem)
