"""The bound of a node's level is never below the level, and near enough to spare most nodes a closer look."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.fgd import Fragmentation
from scheduler_ext.decide.index.levels import BestCase
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from scheduler_ext.requests import GpuRequest
from scheduler_ext.workload import Popular, Workload, class_of
from tests.builders import container, pod
from tests.scheduler_ext.decide import test_laws
from tests.scheduler_ext.gpus import device, request, usage
from tests.scheduler_ext.mig_gpus import mig_device

hosts = st.builds(HostAmount, st.integers(-1000, 20_000), st.integers(-1000, 20_000))
asked_of_hosts = st.builds(HostAmount, st.integers(0, 9_000), st.integers(0, 9_000))
requests = st.builds(lambda asked, host: replace(request(asked), host=host), test_laws.pods(), asked_of_hosts)
rates = st.sampled_from([0.0, 0.4, 1.0, 3.0])


@st.composite
def machines(draw: st.DrawFn) -> NodeUsage:
    found = draw(test_laws.nodes())
    if draw(st.booleans()):
        found = replace(found, gpus=(*found.gpus, GpuUsage(mig_device(9))))
    return replace(
        found, node=replace(found.node, by_slots=draw(st.booleans()), devices=tuple(g.device for g in found.gpus))
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    classes = draw(st.lists(requests, max_size=5))
    return Workload(
        classes=tuple(Popular(pods=class_of(each), share=1 / len(classes)) for each in classes),
        per_gpu=draw(asked_of_hosts),
        pressure={device(0).type: draw(rates)} if classes else {},
    )


@given(machines(), workloads(), requests, st.one_of(st.none(), hosts))
def test_no_placement_is_better_than_the_best_case(
    on: NodeUsage, popular: Workload, wanted: GpuRequest, room: HostAmount | None
) -> None:
    looking = Fragmentation(popular)
    site = looking.site(on, room)
    shares = place(wanted, on, None)
    if not isinstance(shares, Misfit):
        assert looking.level(wanted, site, shares) <= BestCase(wanted, looking).level(site)


def test_a_node_without_room_comes_last() -> None:
    full = usage("n", [GpuUsage(device(0), 1, 40_000, 0)])
    wanted = request(pod(container(gpu=1, gpumem=1000)))
    looking = Fragmentation(Workload(classes=(Popular(pods=class_of(wanted), share=1.0),)))
    assert BestCase(wanted, looking).level(looking.site(full, None)) == 0


def test_what_cpu_and_memory_no_longer_host_is_known_without_choosing_gpus() -> None:
    """Here the bound is the level itself."""
    wanted = replace(request(pod(container(gpu=1))), host=HostAmount(4_000, 0))
    popular = Workload(classes=(Popular(pods=class_of(wanted), share=1.0),), per_gpu=HostAmount(4_000, 0))
    looking, on = Fragmentation(popular), usage("n", [GpuUsage(device(0)), GpuUsage(device(1))])
    shares = place(wanted, on, None)
    assert not isinstance(shares, Misfit)
    for cpu in (20_000, 8_000, 6_000):
        site = looking.site(on, HostAmount(cpu, 0))
        assert BestCase(wanted, looking).level(site) == looking.level(wanted, site, shares)
