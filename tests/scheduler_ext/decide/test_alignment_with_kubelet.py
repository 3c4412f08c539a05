"""A pod that is placed is one that kubelet's Topology Manager admits, and puts where the extender expects it, as an
independent model of it judges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from hypothesis import example, given
from hypothesis import strategies as st

from proto.annotations.node_numa import NodeNuma, TopologyPolicy, TopologyScope, ZoneCpus
from proto.kubernetes.objects import Container
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.alignment import KubeletRefusal, zones_of
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from tests.builders import container, pod
from tests.scheduler_ext.decide.topology_manager import Asking, Pool, TopologyManager
from tests.scheduler_ext.gpus import device, request

SINGLE, RESTRICTED = TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED
ALIGNING = [SINGLE, RESTRICTED, TopologyPolicy.BEST_EFFORT]
TWO, ONE_AND_TWO = [(1, 0, 1), (1, 0, 1)], [(1, 0, 1), (2, 0, 1)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node, a pod with a GPU. `zones` are CPUs, CPUs of others and GPUs; `held` are replicas of each GPU, of which
    the last `nowhere` name no NUMA node. Init containers that last are sidecars.
    """

    zones: Sequence[tuple[int, int, int]]
    policy: TopologyPolicy
    scope: TopologyScope = TopologyScope.CONTAINER
    replicas: int = 1
    nowhere: int = 0
    held: Sequence[int] = ()
    inits: Sequence[Asking] = ()
    apps: Sequence[Asking] = ()


ASKING = st.builds(Asking, cpus=st.integers(0, 4), replicas=st.integers(0, 2))
CASES = st.builds(
    Case,
    zones=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=4).filter(
        lambda zones: sum(cpus > 0 for cpus, _, _ in zones) > 1
    ),
    policy=st.sampled_from(ALIGNING),
    scope=st.sampled_from(TopologyScope),
    replicas=st.integers(1, 3),
    nowhere=st.integers(0, 2),
    held=st.lists(st.integers(0, 3), min_size=14, max_size=14),
    inits=st.lists(
        st.builds(Asking, cpus=st.integers(0, 4), replicas=st.integers(0, 2), lasts=st.booleans()), max_size=2
    ),
    apps=st.lists(ASKING, min_size=1, max_size=2),
).filter(lambda case: any(each.replicas for each in (*case.inits, *case.apps)))


@given(CASES)
# GPUs of a NUMA node without CPUs; two containers of a pod that is aligned as a whole; GPUs and
# CPUs that an init container had; a GPU of no NUMA node.
@example(Case(zones=[(0, 0, 1), (1, 0, 0), (1, 0, 0)], policy=SINGLE, apps=[Asking(1, 1)]))
@example(Case(zones=TWO, policy=SINGLE, scope=TopologyScope.POD, apps=[Asking(0, 1), Asking(0, 1)]))
@example(Case(zones=ONE_AND_TWO, policy=RESTRICTED, inits=[Asking(0, 1, lasts=False)], apps=[Asking(2, 1)]))
@example(Case(zones=ONE_AND_TWO, policy=SINGLE, inits=[Asking(1, 0, lasts=False)], apps=[Asking(2, 1)]))
@example(Case(zones=[(1, 0, 0), (1, 0, 1)], policy=RESTRICTED, nowhere=1, held=[1], apps=[Asking(0, 1)]))
def test_a_pod_that_is_placed_is_admitted_by_kubelets_topology_manager_and_put_where_it_is_expected(case: Case) -> None:
    usage, kubelet = node_of(case)
    wanted = pod(*map(made, case.apps), inits=[made(each, init=True) for each in case.inits])
    expected, places = zones_of(request(wanted), usage), kubelet.admits([*case.inits, *case.apps])
    if not isinstance(place(request(wanted), usage, None), Misfit):
        assert places is not None
        assert not isinstance(expected, KubeletRefusal)
        # Where kubelet has no preference, the extender expects nothing.
        found = zip(expected or (), places, strict=False)
        assert all(zones is None or (zones, True) == place_of for zones, place_of in found)


def made(asking: Asking, *, init: bool = False) -> Container:
    gpus = {"gpu": asking.replicas, "gpumem": 1} if asking.replicas else {}
    policy = "Always" if init and asking.lasts else ""
    return container("c", policy, cpu=asking.cpus or "500m", memory="1Gi", **gpus)


def node_of(case: Case) -> tuple[NodeUsage, TopologyManager]:
    """The node as the extender and as kubelet know it."""
    zones = {
        number: ZoneCpus(total, max(total - others, 0)) for number, (total, others, _) in enumerate(case.zones) if total
    }
    numa = [number for number, (_, _, gpus) in enumerate(case.zones) for _ in range(gpus)] + [-1] * case.nowhere
    devices = tuple(device(at, numa=zone, replicas=case.replicas) for at, zone in enumerate(numa))
    held = [min(each, case.replicas) for each, _ in zip((*case.held, *repeat(0, 14)), numa, strict=False)]
    usage = NodeUsage(
        node=RegisteredNode(
            name="n", devices=devices, numa=NodeNuma(policy=case.policy, scope=case.scope, zones=zones)
        ),
        gpus=tuple(GpuUsage(each, replicas=given) for each, given in zip(devices, held, strict=True)),
        free_cpus={number: zone.free for number, zone in zones.items()},
    )
    cpus = {f"{number}/{at}": number for number, zone in zones.items() for at in range(zone.cpus)}
    replicas = {
        f"{at}/{each}": zone if zone in zones else None for at, zone in enumerate(numa) for each in range(case.replicas)
    }
    idle = {f"{number}/{at}" for number, zone in zones.items() for at in range(zone.free)}
    free = {f"{at}/{each}" for at, given in enumerate(held) for each in range(given, case.replicas)}
    return usage, TopologyManager(
        case.policy, case.scope, Pool(cpus, idle, sorted(zones)), Pool(replicas, free, range(len(case.zones)))
    )
