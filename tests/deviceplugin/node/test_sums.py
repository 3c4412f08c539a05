"""The Node's sums, from which everybody subtracts those of its pods."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation.decision import held_by
from deviceplugin.node.totals import node_sums, requested_sums
from proto.annotations.keys import RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, SUMS
from proto.devices import Device
from proto.kubernetes.objects import Pod, Resources
from tests.deviceplugin.gpus import INVENTORY, PAIR, A, B, bound_pod, share

MIB = 40960
ALL = {RESOURCE_MEMORY_SUM: 2 * MIB, RESOURCE_CORES_SUM: 200}


def holding(memory_mib: int, cores: int, *, asked: tuple[int, int] | None = None, gpus: int = 1) -> Pod:
    """A pod with these amounts of each GPU. The webhook wrote the sums `asked`, by default the right ones."""
    made = bound_pod("p", (tuple(share(gpu, memory_mib, cores) for gpu in (A, B)[:gpus]),))
    amounts = (gpus * memory_mib, gpus * cores) if asked is None else asked
    made.spec.containers[0].resources = Resources(
        limits={"nvidia.com/gpu": str(gpus), **{name: str(amount) for name, amount in zip(SUMS, amounts, strict=True)}}
    )
    return made


def sums(*pods: Pod, devices: tuple[Device, ...] = PAIR) -> dict[str, int]:
    held = [held_by(each, INVENTORY, "nvidia.com/gpu") for each in pods]
    return dict(node_sums(devices, held, map(requested_sums, pods)))


def test_sums_stay_the_same_whatever_pods_with_right_sums_there_are() -> None:
    assert sums() == sums(holding(3000, 30), holding(MIB - 3009, 70), holding(9, 0)) == ALL


def test_a_pod_without_sums_leaves_less_for_others() -> None:
    left = {RESOURCE_MEMORY_SUM: 2 * MIB - 6000, RESOURCE_CORES_SUM: 140}
    assert sums(holding(3000, 30, asked=(0, 0), gpus=2)) == left


def test_a_pod_that_shrank_while_it_runs_leaves_more() -> None:
    assert sums(holding(1000, 10, asked=(5000, 10))) == ALL | {RESOURCE_MEMORY_SUM: 2 * MIB + 4000}


def test_an_unhealthy_gpu_has_nothing_free_and_what_pods_request_counts_on() -> None:
    ill = (replace(PAIR[0], healthy=False), PAIR[1])
    assert sums(holding(3000, 30), devices=ill) == {RESOURCE_MEMORY_SUM: MIB + 3000, RESOURCE_CORES_SUM: 130}


AMOUNTS = st.tuples(st.integers(0, 2 * MIB), st.integers(0, 200))
PODS = st.builds(holding, st.integers(1, MIB), st.integers(0, 100), asked=st.none() | AMOUNTS, gpus=st.integers(1, 2))


@given(st.lists(PODS, max_size=5))
def test_no_sum_is_below_what_running_pods_request_and_the_rest_is_free(pods: list[Pod]) -> None:
    asked = [sum(each) for each in zip(*map(requested_sums, pods), strict=True)] or [0, 0]
    left = [total - own for total, own in zip(sums(*pods).values(), asked, strict=True)]
    free = [[MIB, 100], [MIB, 100]]
    for each in pods:
        for gpu, part in held_by(each, INVENTORY, "nvidia.com/gpu").items():
            place = free[0 if gpu == A else 1]
            place[0], place[1] = place[0] - part.memory_mib, place[1] - part.cores
    assert left == [sum(max(0, gpu[place]) for gpu in free) for place in (0, 1)]
