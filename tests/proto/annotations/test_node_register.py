"""Golden strings: what HAMi 2.4 to 2.10 write, and what we ever wrote. Old ones are never edited."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.node_register import TextFields, decode_register, encode_register, encode_register_text
from proto.devices import Device, DeviceUUID, MigPlacement, MigProfile

A100 = Device(
    uuid=DeviceUUID("GPU-x"),
    index=0,
    replicas=10,
    memory_mib=40960,
    cores=100,
    type="NVIDIA A100-SXM4-40GB",
    numa=0,
    mode="hami-core",
    healthy=True,
)
A100_JSON = (
    '[{"id":"GPU-x","count":10,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core",'
    '"health":true}]'
)
TWO_GPUS_OF_2_10 = (
    '[{"id":"GPU-ebe7c3f7-303d-558d-435e-99a160631fe4","count":10,"devmem":40960,"devcore":100,'
    '"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true},'
    '{"id":"GPU-f8dbbd87-ac3e-ad66-65fa-1a1ed8a8ab7b","index":1,"count":10,"devmem":40960,"devcore":100,'
    '"type":"NVIDIA A100-SXM4-40GB","numa":1,"mode":"hami-core"}]'
)
NINE_FIELDS = "GPU-x,10,40960,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true,0,hami-core:"
SEVEN_FIELDS = "GPU-x,10,40960,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true:"
MIG_JSON = (
    '[{"id":"GPU-x","count":7,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"mig",'
    '"migProfiles":[{"name":"1g.5gb","memoryMB":4864,"core":14,"sliceCount":1,'
    '"placements":[{"start":0,"size":1},{"start":1,"size":1}]}],"health":true}]'
)
MIG_GPU = replace(
    A100,
    replicas=7,
    mode="mig",
    mig_profiles=(
        MigProfile(
            name="1g.5gb",
            memory_mib=4864,
            cores=14,
            slice_count=1,
            placements=(MigPlacement(start=0, size=1), MigPlacement(start=1, size=1)),
        ),
    ),
)


def test_index_0_and_numa_0_are_left_out_as_go_leaves_out_zeroes() -> None:
    assert encode_register([A100]) == A100_JSON
    assert decode_register(A100_JSON) == (A100,)


def test_the_two_gpus_of_hami_2_10_read_and_write_the_same() -> None:
    healthy, sick = decode_register(TWO_GPUS_OF_2_10)
    assert (healthy.index, healthy.numa, healthy.healthy) == (0, 0, True)
    assert (sick.index, sick.numa, sick.healthy) == (1, 1, False)
    assert encode_register([healthy, sick]) == TWO_GPUS_OF_2_10


def test_the_pair_score_object_of_2_8_and_2_9_is_ignored() -> None:
    assert decode_register(A100_JSON.replace('"health":true}', '"health":true,"devicepairscore":{}}')) == (A100,)


def test_the_text_of_2_5_to_2_7_and_the_one_of_2_4() -> None:
    assert encode_register_text([A100]) == NINE_FIELDS
    assert encode_register_text([A100], fields=7) == SEVEN_FIELDS
    assert decode_register(NINE_FIELDS) == decode_register(SEVEN_FIELDS) == (A100,)


def test_mig_profiles_travel_in_json() -> None:
    assert encode_register([MIG_GPU]) == MIG_JSON
    assert decode_register(MIG_JSON) == (MIG_GPU,)


def test_a_node_without_gpus_says_so() -> None:
    assert encode_register([]) == "[]"
    assert decode_register("[]") == () == decode_register(" [] ")


def test_more_gpus_than_any_node_has_are_refused() -> None:
    many = [replace(A100, uuid=DeviceUUID(f"GPU-{at}")) for at in range(257)]
    assert len(decode_register(encode_register(many[1:]))) == 256
    with pytest.raises(AnnotationError, match="lists 257 GPUs; at most 256 are read"):
        decode_register(encode_register(many))


def test_an_unknown_numa_node_is_not_node_0() -> None:
    assert decode_register(encode_register([replace(A100, numa=-1)]))[0].numa == -1


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("", "empty"),
        ("hello", "neither a JSON list nor a list of devices that end in ':'"),
        ("{}", "neither"),
        ("[{", "truncated"),
        ('[{"id":"a","devmem":"1"}]', "$[0].devmem: Expected `int`, got `str`"),
        ('[{"id":"a","devmem":-1}]', "$[0].devmem: Expected `int` >= 0"),
        ('[{"id":"a","index":-1}]', "$[0].index: Expected `int` >= 0"),
        ('[{"id":"a","count":1%s}]' % ("0" * 40), "$[0].count: Expected `int` <= 2147483647"),
        ('[{"id":"a","numa":-2147483649}]', "$[0].numa: Expected `int` >= -2147483648"),
        ('[{"id":"a"},{"id":"a"}]', "$[1].id: a is listed twice"),
        ('[{"count":1}]', "$[0].id: missing"),
        ('[{"x":' + "[" * 99999 + "]" * 99999 + "}]", "nested too deeply"),
        ("a,1,2,3:", "device 0: expected 7 or 9 fields, found 4"),
        ("a,1,2,3,t,0,true:b,x,2,3,t,0,true:", "device 1, count: expected a whole number, found 'x'"),
        ("a,1_0,2,3,t,0,true:", "device 0, count: expected a whole number, found '1_0'"),
        ("a,1,2,3,t,0,yes:", "device 0, health: expected true or false, found 'yes'"),
        ("a,1,2,3,t,0,true,-1,m:", "device 0, index: negative: -1"),
        ("a,2147483648,2,3,t,0,true:", "device 0, count: beyond 2147483647: 2147483648"),
        (f"a,{'9' * 5000},2,3,t,0,true:", "device 0, count: expected a whole number"),
    ],
)
def test_errors_name_key_place_and_reason(value: str, error: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        decode_register(value)
    assert str(caught.value).startswith("hami.io/node-nvidia-register: ")
    assert error in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("change", [{"type": "NVIDIA A,B"}, {"type": "NVIDIA A:B"}, {"uuid": "a:b"}, {"mode": "a,b"}])
def test_names_with_separators_cannot_be_written_as_text(change: dict[str, str]) -> None:
    with pytest.raises(AnnotationError, match="cannot be written as text"):
        encode_register_text([replace(A100, **change)])  # type: ignore[arg-type]


WORD = st.text(st.characters(codec="utf-8", exclude_characters=",:", exclude_categories=["Cc", "Cs"]), min_size=1)
COUNT = st.integers(min_value=0, max_value=2**31 - 1)
DEVICES = st.builds(
    Device,
    uuid=WORD.map(lambda word: DeviceUUID(f"GPU-{word}")),
    index=COUNT,
    replicas=COUNT,
    memory_mib=COUNT,
    cores=COUNT,
    type=WORD.map(lambda word: f"NVIDIA {word}"),
    numa=st.integers(min_value=-1, max_value=255),
    mode=st.sampled_from(["hami-core", "mig", "mps"]),
    healthy=st.booleans(),
)
INVENTORIES = st.lists(DEVICES, max_size=5, unique_by=lambda device: device.uuid).map(tuple)


@given(INVENTORIES)
def test_json_round_trips(devices: tuple[Device, ...]) -> None:
    assert decode_register(encode_register(devices)) == devices


@given(INVENTORIES.filter(bool))
def test_nine_fields_round_trip(devices: tuple[Device, ...]) -> None:
    assert decode_register(encode_register_text(devices)) == devices


@given(INVENTORIES.filter(bool))
def test_seven_fields_lose_index_and_mode_only(devices: tuple[Device, ...]) -> None:
    fields: TextFields = 7
    expected = tuple(replace(device, index=0, mode="hami-core") for device in devices)
    assert decode_register(encode_register_text(devices, fields)) == expected


@given(st.text() | st.text(alphabet='[]{}",:GPU-0123456789truefalse'))
def test_any_text_is_read_or_refused(value: str) -> None:
    key = "hami.io/node-nvidia-register"
    try:
        decode_register(value)
    except AnnotationError as error:
        key = error.key
    assert key == "hami.io/node-nvidia-register"
