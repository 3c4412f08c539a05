import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.replicas import preferred_replicas, replica_ids, split_replica
from proto.devices import DeviceUUID
from tests.deviceplugin.gpus import PAIR, A, B, a100


def test_the_reference_vector() -> None:
    identifier = "GPU-03f69c50-207a-2038-9b45-23cac89cb67a-0"
    assert split_replica(identifier) == ("GPU-03f69c50-207a-2038-9b45-23cac89cb67a", 0)


def test_an_id_that_is_no_replica_is_a_whole_gpu() -> None:
    assert split_replica(A) == (A, 0)
    assert split_replica("MIG-x-y") == ("MIG-x-y", 0)


@pytest.mark.parametrize(
    "uuid",
    ["MIG-03f69c50-207a-2038-9b45-23cac89cb67a", "MIG-GPU-03f69c50-207a-2038-9b45-23cac89cb67a/7/0"],
)
def test_a_mig_device_is_its_own_only_replica(uuid: str) -> None:
    assert replica_ids(a100(DeviceUUID(uuid), 0, replicas=1)) == (uuid,)
    assert split_replica(uuid) == (uuid, 0)
    assert preferred_replicas([DeviceUUID(uuid)], [f"{A}-0", uuid], [], 1) == (uuid,)


@given(st.uuids(), st.integers(1, 64))
def test_every_replica_leads_back_to_its_gpu(uuid: object, replicas: int) -> None:
    device = a100(DeviceUUID(f"GPU-{uuid}"), 0, replicas=replicas)
    assert [split_replica(identifier) for identifier in replica_ids(device)] == [
        (device.uuid, number) for number in range(replicas)
    ]


def test_one_free_replica_of_each_decided_gpu_is_preferred() -> None:
    available = [identifier for device in PAIR for identifier in replica_ids(device)]
    assert preferred_replicas([B, A], available, [], 2) == (f"{B}-0", f"{A}-0")
    assert preferred_replicas([B], available, [], 1) == (f"{B}-0",)


def test_what_must_be_included_counts_for_its_gpu() -> None:
    available = [f"{A}-1", f"{A}-2", f"{B}-2"]
    assert preferred_replicas([A, B], available, [f"{A}-1"], 2) == (f"{A}-1", f"{B}-2")


def test_a_decided_gpu_without_a_free_replica_is_left_to_kubelet() -> None:
    assert preferred_replicas([A, B], [f"{B}-0"], [], 2) == (f"{B}-0",)
