import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.mig_allocations import (
    MigAllocation,
    decode_mig_allocations,
    encode_mig_allocations,
    mig_allocations,
)
from proto.devices import DeviceShare, DeviceUUID, MigInstance, MigPlacement

INSTANCE = MigInstance(profile="2g.10gb", placement=MigPlacement(start=0, size=2))
ALLOCATION = MigAllocation(
    container=0, device=0, gpu=DeviceUUID("G1"), profile=INSTANCE.profile, placement=INSTANCE.placement
)
OF_2_10 = '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"G1","profile":"2g.10gb","placement":{"start":0,"size":2}}]'
REALISED = (
    '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"G1","profile":"2g.10gb","placement":{"start":0,"size":2},'
    '"migUUID":"MIG-x","gpuInstanceID":4,"computeInstanceID":0}]'
)


def test_an_allocation_is_written_as_hami_2_10_writes_it() -> None:
    assert encode_mig_allocations((ALLOCATION,)) == OF_2_10
    assert decode_mig_allocations(OF_2_10) == (ALLOCATION,)


def test_the_ids_that_the_node_daemon_adds_are_read_and_kept() -> None:
    (found,) = decode_mig_allocations(REALISED)
    assert (found.mig_uuid, found.gpu_instance, found.compute_instance) == ("MIG-x", 4, 0)
    assert encode_mig_allocations((found,)) == REALISED


def test_only_shares_that_are_instances_are_listed_under_their_container_and_device() -> None:
    plain = DeviceShare(uuid=DeviceUUID("G0"), memory_mib=1000, cores=0)
    cut = DeviceShare(uuid=DeviceUUID("G1"), memory_mib=9856, cores=29, instance=INSTANCE)
    expected = msgspec.structs.replace(ALLOCATION, container=2, device=1)
    assert mig_allocations(((plain,), (), (plain, cut))) == (expected,)


def test_fields_of_later_versions_are_ignored() -> None:
    assert decode_mig_allocations(OF_2_10.replace('"gpuUUID"', '"later":[1],"gpuUUID"')) == (ALLOCATION,)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[{", "{", "Expected `array`, got `object`"),
        ('"profile":"2g.10gb",', "", r"\$\[0\]: Object missing required field `profile`"),
        ('"start":0', '"start":"x"', r"\$\[0\].placement.start: Expected `int`, got `str`"),
        ('"start":0', '"start":-1', r"\$\[0\].placement.start: Expected `int` >= 0"),
        ('"size":2', '"size":0', r"\$\[0\].placement.size: Expected `int` >= 1"),
        ('"containerIndex":0', '"containerIndex":-2', r"\$\[0\].containerIndex: Expected `int` >= 0"),
        ('"G1"', '""', r"\$\[0\].gpuUUID: Expected `str` of length >= 1"),
        ('"2g.10gb"', '""', r"\$\[0\].profile: Expected `str` of length >= 1"),
        ("}}]", '},"migUUID":"MIG-x"}]', r"\$\[0\]: migUUID, gpuInstanceID and computeInstanceID come together"),
        ("}}]", "}}," + OF_2_10[1:], r"\$\[1\]: container 0, device 0 is listed twice"),
    ],
)
def test_one_bad_row_spoils_the_list_and_is_named(old: str, new: str, problem: str) -> None:
    with pytest.raises(AnnotationError, match=f"^hami.io/vgpu-mig-allocations: .*{problem}"):
        decode_mig_allocations(OF_2_10.replace(old, new, 1))


natural = st.integers(0, 2**31 - 1)
words = st.text(min_size=1, max_size=8).map(DeviceUUID)
of_one = {"container": natural, "device": natural, "gpu": words, "profile": words}
places = st.builds(MigPlacement, start=natural, size=st.integers(1, 8))
allocations = st.builds(MigAllocation, **of_one, placement=places) | st.builds(
    MigAllocation, **of_one, placement=places, mig_uuid=words, gpu_instance=natural, compute_instance=natural
)


@given(st.lists(allocations, unique_by=lambda each: (each.container, each.device), max_size=4).map(tuple))
def test_what_is_written_is_read_back(written: tuple[MigAllocation, ...]) -> None:
    assert decode_mig_allocations(encode_mig_allocations(written)) == written
