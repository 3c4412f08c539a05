import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED, DEVICES_TO_ALLOCATE
from proto.annotations.pod_devices import decode_pod_devices, encode_pod_devices
from proto.devices import DeviceShare, DeviceUUID, PodShares


def share(uuid: str, memory_mib: int, cores: int) -> DeviceShare:
    return DeviceShare(uuid=DeviceUUID(uuid), memory_mib=memory_mib, cores=cores)


GOLDEN: list[tuple[str, PodShares]] = [
    ("", ()),
    (";", ((),)),
    ("GPU-1,NVIDIA,4000,20:;", ((share("GPU-1", 4000, 20),),)),
    ("GPU-1,NVIDIA,4000,20:GPU-2,NVIDIA,4000,20:;", ((share("GPU-1", 4000, 20), share("GPU-2", 4000, 20)),)),
    ("GPU-1,NVIDIA,3000,0:;GPU-1,NVIDIA,5000,0:;", ((share("GPU-1", 3000, 0),), (share("GPU-1", 5000, 0),))),
    (";GPU-1,NVIDIA,1000,0:;", ((), (share("GPU-1", 1000, 0),))),
    (
        "GPU-3,NVIDIA,1000,0:;;GPU-2,NVIDIA,1000,0:GPU-1,NVIDIA,1000,0:;",
        ((share("GPU-3", 1000, 0),), (), (share("GPU-2", 1000, 0), share("GPU-1", 1000, 0))),
    ),
    (
        "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;;GPU-a,NVIDIA,5000,0:;",
        ((share("GPU-a", 3000, 30), share("GPU-b", 3000, 30)), (), (share("GPU-a", 5000, 0),)),
    ),
]


@pytest.mark.parametrize(("value", "pod"), GOLDEN)
def test_golden_strings_both_ways(value: str, pod: PodShares) -> None:
    assert encode_pod_devices(pod) == value
    assert decode_pod_devices(DEVICES_ALLOCATED, value) == pod
    assert decode_pod_devices(DEVICES_ALLOCATED, value, containers=len(pod)) == pod


@pytest.mark.parametrize(
    ("value", "containers", "pod"),
    [
        (";;", 1, ((),)),
        (";GPU-b,NVIDIA,2,0:;;", 2, ((), (share("GPU-b", 2, 0),))),
        (";;;;", 2, ((), ())),
        (";", 1, ((),)),
        ("GPU-a,NVIDIA,1,0:;", 3, ((share("GPU-a", 1, 0),), (), ())),
    ],
    ids=["one consumed", "first of two consumed", "both consumed", "consumed by 2.8", "padding left out by 2.8"],
)
def test_the_growth_of_a_consumed_value_changes_nothing(value: str, containers: int, pod: PodShares) -> None:
    assert decode_pod_devices(DEVICES_TO_ALLOCATE, value, containers) == pod


def test_what_hami_2_4_writes_for_a_container_without_gpus_is_no_device() -> None:
    value = "GPU-a,NVIDIA,500,5:;,,0,0:;GPU-b,NVIDIA,500,5:;"
    assert [len(shares) for shares in decode_pod_devices("k", value, 3)] == [1, 0, 1]


def test_fields_beyond_the_fourth_are_for_later_versions() -> None:
    assert decode_pod_devices(DEVICES_ALLOCATED, "GPU-1,NVIDIA,1,2,new,newer:;") == ((share("GPU-1", 1, 2),),)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("GPU-1,NVIDIA,1,2:", "container 0: does not end in ';'"),
        (";GPU-1,NVIDIA,1:;", "container 1, device 0: expected UUID,vendor,MiB,cores, found 'GPU-1,NVIDIA,1'"),
        (";nonsense;", "container 1, device 0: expected UUID,vendor,MiB,cores, found 'nonsense'"),
        (",NVIDIA,1,2:;", "container 0, device 0: no UUID"),
        ("GPU-1,A100,1,2:;", "container 0, device 0: expected vendor NVIDIA, found 'A100'"),
        ("GPU-1,NVIDIA,1,2:GPU-2,NVIDIA,x,2:;", "container 0, device 1, MiB: expected a whole number, found 'x'"),
        ("GPU-1,NVIDIA,1,-2:;", "container 0, device 0, cores: negative: -2"),
        ("GPU-1,NVIDIA,2147483648,2:;", "container 0, device 0, MiB: beyond 2147483647: 2147483648"),
        (f"GPU-1,NVIDIA,{'9' * 5000},2:;", "container 0, device 0, MiB: expected a whole number"),
    ],
)
def test_errors_name_key_container_and_device(value: str, error: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        decode_pod_devices(DEVICES_ALLOCATED, value)
    assert str(caught.value).startswith(f"{DEVICES_ALLOCATED}: {error}")


def test_devices_for_a_container_the_pod_does_not_have_are_refused() -> None:
    with pytest.raises(AnnotationError, match="devices for 2 containers, but the pod has 1"):
        decode_pod_devices(DEVICES_ALLOCATED, ";GPU-1,NVIDIA,1,2:;", containers=1)


NATURAL = st.integers(min_value=0, max_value=2**31 - 1)
SHARES = st.builds(share, st.from_regex(r"GPU-[0-9a-f-]{1,36}", fullmatch=True), NATURAL, NATURAL)
PODS = st.lists(st.lists(SHARES, max_size=3).map(tuple), max_size=4).map(tuple)


@given(PODS, st.integers(min_value=0, max_value=3))
def test_round_trip_whatever_hami_appends(pod: PodShares, growth: int) -> None:
    assert decode_pod_devices(DEVICES_ALLOCATED, encode_pod_devices(pod) + ";" * growth, len(pod)) == pod


@given(st.text() | st.text(alphabet="GPU-NVIDIA,;:0123"))
def test_any_text_is_read_or_refused(value: str) -> None:
    key = DEVICES_ALLOCATED
    try:
        decode_pod_devices(DEVICES_ALLOCATED, value)
    except AnnotationError as error:
        key = error.key
    assert key == DEVICES_ALLOCATED


@pytest.mark.parametrize(
    "value", ["{};", "GPU-a,{},1,1:;", "GPU-a,NVIDIA,{},1:;", "{},NVIDIA,1,1:;", "GPU-a,NVIDIA,-{},1:;"]
)
def test_what_a_stranger_writes_fills_no_log(value: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        decode_pod_devices(DEVICES_ALLOCATED, value.format("9" * 250_000))
    assert len(str(caught.value)) < 500
