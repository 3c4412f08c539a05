"""Pods whose containers fit on a node, but not if each takes what its policy prefers, in the pod's order."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest

from proto.annotations import keys
from proto.devices import DeviceUUID, PodShares
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.effort import Effort, finished
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from scheduler_ext.decide.preempt import GpuHolder, victims
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request, usage
from tests.scheduler_ext.mig_gpus import mig_device

WHOLE = 40_960
HALF = 20_480
POLICIES = ("spread", "binpack", "numa", "topology-aware", "fgd")


def asking(*amounts: int, policy: str = "spread", **annotations: str) -> Pod:
    """A pod with one GPU for each container, with these MiB."""
    containers = [container(f"c{number}", gpu=1, gpumem=mib) for number, mib in enumerate(amounts)]
    return pod(*containers, annotations={keys.GPU_POLICY: policy, **annotations})


def empty(gpus: int = 2) -> NodeUsage:
    return usage("n", [GpuUsage(device(number)) for number in range(gpus)])


def uuids(wanted: Pod, on: NodeUsage, quota: Quota | None = None) -> list[list[DeviceUUID]]:
    """The GPUs by container."""
    found = place(request(wanted), on, quota)
    assert not isinstance(found, Misfit), found.reason
    return [[share.uuid for share in each] for each in found]


def refusal(wanted: Pod, on: NodeUsage, quota: Quota | None = None) -> str:
    found = place(request(wanted), on, quota)
    assert isinstance(found, Misfit)
    return found.reason


@pytest.mark.parametrize("policy", POLICIES)
def test_two_halves_leave_a_gpu_to_the_container_that_needs_a_whole_one(policy: str) -> None:
    first, second, whole = uuids(asking(HALF, HALF, WHOLE, policy=policy), empty())
    assert first == second != whole


def test_a_pod_that_cannot_fit_keeps_the_reason_of_its_first_attempt() -> None:
    assert refusal(asking(HALF, HALF, WHOLE, HALF), empty()) == "2/2 CardInsufficientMemory"


def test_containers_are_spread_as_far_as_the_largest_one_permits() -> None:
    found = uuids(asking(10_000, 10_000, 10_000, WHOLE), empty(3))
    whole = found[3]
    small = [each for each in found if each != whole]
    assert len(small) == 3
    assert len({each[0] for each in small}) == 2


@pytest.mark.parametrize("policy", ["topology-aware", "fgd"])
def test_the_container_of_several_gpus_gets_linked_ones(policy: str) -> None:
    linked = {"G0": "G2", "G2": "G0", "G1": "G3", "G3": "G1"}
    gpus = [GpuUsage(device(number)) for number in range(4)]
    gpus.append(GpuUsage(device(4, memory_mib=2 * WHOLE), 1, 0))
    scores = {a.device.uuid: {b.device.uuid: 10 for b in gpus if b is not a} for a in gpus}
    for one, other in linked.items():
        scores[DeviceUUID(one)][DeviceUUID(other)] = 200
    small, large, pair = container(gpu=1, gpumem=30_000), container(gpu=1, gpumem=2 * WHOLE), container(gpu=2)
    wanted = pod(small, large, pair, annotations={keys.GPU_POLICY: policy})
    found = uuids(wanted, usage("n", gpus, scores))
    assert found[1] == ["G4"]
    assert linked[found[2][0]] == found[2][1]


def test_a_sidecar_leaves_room_for_an_init_container_that_starts_after_it() -> None:
    sidecar = container("sidecar", restart_policy="Always", gpu=1, gpumem=10_000)
    init = container("init", gpu=2, gpumem=35_000)
    on = usage("n", [GpuUsage(device(0)), GpuUsage(device(1)), GpuUsage(device(2, memory_mib=30_000))])
    wanted = pod(container("app", gpu=1, gpumem=1_000), inits=[sidecar, init])
    assert uuids(wanted, on)[:2] == [["G2"], ["G0", "G1"]]


def test_an_init_container_leaves_what_it_had_to_the_containers_after_it() -> None:
    init = container("init", gpu=2, gpumem=WHOLE)
    first, second, whole = (container(f"c{mib}", gpu=1, gpumem=mib) for mib in (HALF - 1, HALF, WHOLE))
    found = uuids(pod(first, second, whole, inits=[init]), empty())
    assert sorted(found[0]) == ["G0", "G1"]
    assert found[1] == found[2] != found[3]


def test_the_gpus_of_a_container_stay_in_one_numa_node() -> None:
    gpus = [GpuUsage(device(number, numa=number // 2)) for number in range(4)]
    wanted = pod(
        container(gpu=1, gpumem=HALF),
        container(gpu=1, gpumem=HALF),
        container(gpu=2, gpumem=HALF + 1),
        container(gpu=1, gpumem=WHOLE),
        annotations={keys.NUMA_BIND: "true", keys.GPU_POLICY: "spread"},
    )
    first, second, pair, whole = uuids(wanted, usage("n", gpus))
    assert pair in (["G0", "G1"], ["G2", "G3"])
    assert first == second
    assert not {*first, *whole} & set(pair)


def test_a_container_that_fits_every_type_leaves_the_larger_one() -> None:
    small = GpuUsage(replace(device(0, memory_mib=24_000), type="NVIDIA-L4"))
    large = GpuUsage(replace(device(1, memory_mib=81_920), type="NVIDIA-H100"))
    assert uuids(asking(20_000, 80_000), usage("n", [small, large])) == [["G0"], ["G1"]]


def test_instances_of_one_gpu_leave_the_other_whole() -> None:
    on = usage("n", [GpuUsage(mig_device(0)), GpuUsage(mig_device(1))])
    first, second, whole = uuids(asking(19_000, 19_000, 40_000), on)
    assert first == second != whole


def test_a_quota_counts_the_containers_together() -> None:
    wanted = asking(HALF, HALF, WHOLE)
    assert uuids(wanted, empty(), Quota(memory_mib=2 * WHOLE))
    assert refusal(wanted, empty(), Quota(memory_mib=2 * WHOLE - 1))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_ranking_of_nodes_finds_what_a_decision_finds(policy: str) -> None:
    ledger = Ledger()
    ledger.replace_nodes([node("small", [device(0)]), node("n", [device(0), device(1)])])
    wanted = request(asking(HALF, HALF, WHOLE, policy=policy))
    choice = NodeIndex(ledger).choose(wanted, ["small", "n"])
    decision = decide(wanted, ledger.snapshot(), ["small", "n"])
    assert (choice.node, choice.shares) == (decision.node, decision.shares)
    assert choice.node == "n"


def test_no_pod_is_evicted_for_one_that_fits_with_other_choices() -> None:
    wanted, gone = request(asking(HALF, HALF, WHOLE)), []

    def fits(without: frozenset[str]) -> bool:
        gone.append(without)
        held = 0 if "held" in without else 1
        gpus = [GpuUsage(device(0)), GpuUsage(device(1)), GpuUsage(device(2), held, held * WHOLE)]
        return not isinstance(place(wanted, usage("n", gpus), None), Misfit)

    assert finished(victims(10, frozenset(), [GpuHolder(uid="held", priority=0)], fits)) == frozenset()
    assert len(gone) == 2


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one container asks for."""

    kind: str
    gpus: int
    memory_mib: int
    cores: int


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is left of a GPU, and whether a container has it."""

    replicas: int
    memory_mib: int
    cores: int
    in_use: bool

    def serves(self, ask: Ask) -> bool:
        if not self.replicas or self.memory_mib < ask.memory_mib or self.cores < ask.cores:
            return False
        return not (ask.cores == 100 and self.in_use) and not (ask.cores == 0 and self.cores <= 0)

    def without(self, ask: Ask) -> "Left":
        memory_mib, cores = self.memory_mib - ask.memory_mib, self.cores - ask.cores
        return Left(replicas=self.replicas - 1, memory_mib=memory_mib, cores=cores, in_use=True)


def is_possible(gpus: Sequence[Left], asks: Sequence[Ask]) -> bool:
    """Tries every choice of GPUs for every container."""
    if not asks:
        return True
    ask, *rest = asks
    serving = [number for number, gpu in enumerate(gpus) if gpu.serves(ask)]
    for chosen in combinations(serving, ask.gpus):
        left = [gpu.without(ask) if number in chosen else gpu for number, gpu in enumerate(gpus)]
        if is_possible(gpus if ask.kind == "init" else left, rest):
            return True
    return False


def cases(count: int) -> Iterator[tuple[list[GpuUsage], list[Ask]]]:
    """Nodes of up to four GPUs, some in use, and pods of up to four containers."""
    draw = random.Random(1)
    for _ in range(count):
        gpus = []
        for number in range(draw.choice([1, 2, 2, 3, 4])):
            replicas = draw.choice([2, 4, 10])
            used = draw.choice([0, 0, 1])
            taken = used * draw.choice([5_000, 10_000, HALF, 30_000]), used * draw.choice([0, 20, 50])
            gpus.append(GpuUsage(device(number, memory_mib=WHOLE, replicas=replicas), used, *taken))
        kinds = draw.choice([("app",) * 4, ("app",) * 3, ("app",) * 2, ("sidecar", "init", "app", "app")])
        yield (
            gpus,
            [
                Ask(
                    kind=kind,
                    gpus=draw.choice([1, 1, 1, 2, 3]),
                    memory_mib=draw.choice([5_000, 10_000, HALF, 30_960, WHOLE]),
                    cores=draw.choice([0, 0, 20, 50, 100]),
                )
                for kind in kinds
            ],
        )


def pod_of(asks: Sequence[Ask], policy: str) -> Pod:
    made = [
        container(
            f"c{number}",
            restart_policy="Always" if ask.kind == "sidecar" else "",
            gpu=ask.gpus,
            gpumem=ask.memory_mib,
            gpucores=ask.cores,
        )
        for number, ask in enumerate(asks)
    ]
    apps = [each for each, ask in zip(made, asks, strict=True) if ask.kind == "app"]
    return pod(*apps, inits=made[: len(made) - len(apps)], annotations={keys.GPU_POLICY: policy})


def replayed(gpus: Sequence[GpuUsage], asks: Sequence[Ask], shares: PodShares) -> bool:
    """Whether the containers find what they were given, in the pod's order."""
    left = [left_of(gpu) for gpu in gpus]
    places = {gpu.device.uuid: number for number, gpu in enumerate(gpus)}
    for ask, container_shares in zip(asks, shares, strict=True):
        chosen = {places[share.uuid] for share in container_shares}
        if len(chosen) != ask.gpus or not all(left[number].serves(ask) for number in chosen):
            return False
        if ask.kind != "init":
            left = [gpu.without(ask) if number in chosen else gpu for number, gpu in enumerate(left)]
    return True


def left_of(gpu: GpuUsage) -> Left:
    whole = gpu.device
    return Left(
        replicas=whole.replicas - gpu.replicas,
        memory_mib=whole.memory_mib - gpu.memory_mib,
        cores=whole.cores - gpu.cores,
        in_use=bool(gpu.replicas),
    )


def test_a_pod_of_up_to_four_containers_is_refused_only_where_no_choice_of_gpus_fits() -> None:
    possible = 0
    for number, (gpus, asks) in enumerate(cases(1_500)):
        wanted = request(pod_of(asks, POLICIES[number % len(POLICIES)]))
        found = place(wanted, usage("n", gpus), None)
        fits = is_possible([left_of(gpu) for gpu in gpus], asks)
        assert isinstance(found, Misfit) is not fits, (gpus, asks, found)
        if not isinstance(found, Misfit):
            possible += 1
            assert replayed(gpus, asks, found), (gpus, asks, found)
    assert possible > 300


@pytest.mark.parametrize(
    ("policies", "most"), [(("spread", "binpack", "numa"), 2_000), (("topology-aware", "fgd"), 8_000)]
)
@pytest.mark.parametrize(("gpus", "containers", "each"), [(8, 16, 4), (8, 9, 1), (16, 16, 8), (16, 4, 8), (256, 16, 9)])
def test_the_work_for_a_node_is_bounded(
    gpus: int, containers: int, each: int, policies: Sequence[str], most: int
) -> None:
    """All GPUs differ. Each container fits with most others, and all of them together do not fit.

    To find the best-linked GPUs once for each container may take longer than the search.
    """
    on = usage("n", [GpuUsage(device(number), 1, number) for number in range(gpus)])
    need_mib = WHOLE * gpus // (containers * each) + 1
    needs = [container(f"c{number}", gpu=each, gpumem=need_mib + number) for number in range(containers)]
    for policy in policies:
        effort = Effort()
        wanted = request(pod(*needs, annotations={keys.GPU_POLICY: policy}))
        assert isinstance(place(wanted, on, None, effort), Misfit)
        assert effort.made < most
