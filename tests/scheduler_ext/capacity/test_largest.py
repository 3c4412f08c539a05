from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.node_limits import NodeLimits
from proto.kubernetes.taints import NO_SCHEDULE, Taint
from scheduler_ext.capacity.largest import Amount, Largest, Smaller, largest, smaller
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.decide.decision import decide
from scheduler_ext.requests import GpuRequest, RequestSettings, read_request
from tests.builders import container, pod
from tests.scheduler_ext.gpus import GIB, device, snapshot, usage


def asking(**limits: int) -> GpuRequest:
    request = read_request(pod(container("c", "", **limits)), RequestSettings())
    assert request is not None
    return request


def gpus(*used: tuple[int, int]) -> list[GpuUsage]:
    """GPUs of which this much memory and cores are taken."""
    return [
        GpuUsage(device(at), replicas=int(mib > 0), memory_mib=mib, cores=cores) for at, (mib, cores) in enumerate(used)
    ]


def test_the_largest_share_is_what_so_many_gpus_of_one_node_have_free() -> None:
    nodes = snapshot(
        usage("a", gpus((0, 0), (10 * GIB, 0), (30 * GIB, 0))), usage("b", gpus((20 * GIB, 0), (20 * GIB, 0)))
    )
    assert largest(nodes) == (
        Largest(gpus=1, whole_pods=1, whole_pods_if_empty=5, share_mib=40 * GIB),
        Largest(gpus=2, whole_pods=0, whole_pods_if_empty=2, share_mib=30 * GIB),
    )


def test_nodes_whose_taint_keeps_pods_away_are_only_in_what_would_fit_if_all_served() -> None:
    barred = usage("a", gpus((0, 0), (0, 0)))
    barred = replace(barred, node=replace(barred.node, barred_by=(Taint("team", "a", NO_SCHEDULE),)))
    assert largest(snapshot(barred, usage("b", gpus((10 * GIB, 0))))) == (
        Largest(gpus=1, whole_pods=0, whole_pods_if_empty=3, share_mib=30 * GIB),
        Largest(gpus=2, whole_pods=0, whole_pods_if_empty=1, share_mib=0),
    )


def test_where_nothing_limits_a_container_there_is_no_share_but_whole_gpus() -> None:
    shared = usage("a", gpus((10 * GIB, 0), (0, 0)))
    node: NodeUsage = replace(shared, node=replace(shared.node, limits=NodeLimits.NONE))
    assert [each.share_mib for each in largest(snapshot(node))] == [40 * GIB, 0]


def test_the_smaller_request_keeps_the_largest_part_of_what_was_asked_for() -> None:
    nodes = snapshot(usage("a", gpus((10 * GIB, 50), (20 * GIB, 10))))
    assert smaller(asking(gpu=1, gpumem=35 * GIB), nodes) == Smaller(
        amount=Amount.MEMORY, at_most=30 * GIB, asked=35 * GIB
    )
    assert smaller(asking(gpu=1, gpumem=10 * GIB, gpucores=95), nodes) == Smaller(
        amount=Amount.CORES, at_most=90, asked=95
    )
    assert smaller(asking(gpu=3, gpumem=5 * GIB), nodes) == Smaller(amount=Amount.GPUS, at_most=2, asked=3)


def test_two_amounts_that_are_both_too_large_have_no_smaller_request() -> None:
    assert smaller(asking(gpu=1, gpumem=35 * GIB, gpucores=95), snapshot(usage("a", gpus((10 * GIB, 50))))) is None


def test_what_a_quota_leaves_is_a_smaller_request_too() -> None:
    quota = Quota(memory_mib=12_000, used=Footprint(1, 2_000, 0))
    nodes: Snapshot = replace(snapshot(usage("a", gpus((0, 0), (0, 0)))), quotas={"default": (quota,)})
    assert smaller(asking(gpu=2, gpumem=8_000), nodes) == Smaller(amount=Amount.MEMORY, at_most=5_000, asked=8_000)


NODES = st.lists(
    st.lists(
        st.tuples(st.sampled_from([0, 5_000, 20_000, 40_960]), st.sampled_from([0, 40, 100])), min_size=1, max_size=3
    ),
    min_size=1,
    max_size=3,
)


@given(
    NODES,
    st.fixed_dictionaries(
        {"gpu": st.integers(1, 4)},
        optional={"gpumem": st.sampled_from([1000, 21_000, 50_000]), "gpucores": st.sampled_from([10, 70, 100])},
    ),
)
def test_a_smaller_request_fits_and_one_that_asks_for_one_more_does_not(
    used: list[list[tuple[int, int]]], asked: dict[str, Any]
) -> None:
    nodes = snapshot(*(usage(f"n{at}", gpus(*each)) for at, each in enumerate(used)))

    def fits(**limits: int) -> bool:
        return decide(asking(**limits), nodes, list(nodes.nodes)).node is not None

    found = smaller(asking(**asked), nodes)
    if fits(**asked) or found is None:
        return
    key = {Amount.MEMORY: "gpumem", Amount.CORES: "gpucores", Amount.GPUS: "gpu"}[found.amount]
    assert fits(**{**asked, key: found.at_most})
    assert not fits(**{**asked, key: found.at_most + 1})
