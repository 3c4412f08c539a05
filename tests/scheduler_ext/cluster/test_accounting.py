from hypothesis import given
from hypothesis import strategies as st

from proto.devices import DeviceShare, DeviceUUID, PodShares
from scheduler_ext.cluster.accounting import NOTHING, Footprint, effective
from scheduler_ext.requests import ContainerKind

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
UUIDS = [DeviceUUID("G0"), DeviceUUID("G1")]


def one(memory_mib: int, uuid: str = "G0") -> tuple[DeviceShare, ...]:
    return (DeviceShare(uuid=DeviceUUID(uuid), memory_mib=memory_mib, cores=10),)


def test_app_containers_add_up_and_init_containers_take_turns() -> None:
    assert effective((APP, APP), (one(3000), one(5000))) == {"G0": Footprint(2, 8000, 20)}
    assert effective((INIT, INIT, APP), (one(8000), one(100), one(1000))) == {"G0": Footprint(1, 8000, 10)}


def test_a_sidecar_runs_beside_everything_after_it_and_nothing_before() -> None:
    assert effective((SIDECAR, INIT, APP), (one(1000), one(4000), one(2000))) == {"G0": Footprint(2, 5000, 20)}
    assert effective((INIT, SIDECAR, APP), (one(4000), one(1000), one(2000))) == {"G0": Footprint(2, 4000, 20)}


shares = st.lists(st.sampled_from(UUIDS), unique=True).flatmap(
    lambda uuids: st.tuples(
        *(
            st.builds(DeviceShare, uuid=st.just(uuid), memory_mib=st.integers(0, 9), cores=st.integers(0, 9))
            for uuid in uuids
        )
    )
)


@given(st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), shares), max_size=4), st.lists(shares, max_size=3))
def test_the_footprint_is_the_peak_of_the_pods_life(
    inits: list[tuple[ContainerKind, tuple[DeviceShare, ...]]], apps: PodShares
) -> None:
    kinds = [kind for kind, _ in inits] + [APP] * len(apps)
    held = effective(kinds, (*(share for _, share in inits), *apps))
    moments: list[list[DeviceShare]] = []
    running: list[DeviceShare] = []
    for kind, container in inits:
        moments.append([*running, *container])
        running += container if kind is SIDECAR else ()
    moments.append([*running, *(share for container in apps for share in container)])
    for uuid in UUIDS:
        mine = [[share for share in moment if share.uuid == uuid] for moment in moments]
        assert held.get(uuid, NOTHING) == Footprint(
            max(map(len, mine)),
            max(sum(share.memory_mib for share in moment) for moment in mine),
            max(sum(share.cores for share in moment) for moment in mine),
        )
