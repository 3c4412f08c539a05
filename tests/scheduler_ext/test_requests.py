import pytest

from proto.annotations import keys
from proto.kubernetes.objects import Container, Resources
from scheduler_ext.requests import (
    ContainerKind,
    ContainerNeed,
    RequestError,
    RequestSettings,
    ResourceNames,
    read_request,
)
from tests.builders import container, pod
from tests.scheduler_ext.gpus import request


def need(**limits: int | str) -> ContainerNeed | None:
    return request(pod(container("c", "", **limits))).needs[0]


def test_a_pod_that_asks_for_no_gpu_is_none_even_with_bad_weights() -> None:
    plain = pod(container(gpumem=1000), annotations={keys.SCORING_WEIGHTS: "nonsense"})
    assert read_request(plain, RequestSettings()) is None
    assert read_request(pod(container(gpu=0)), RequestSettings()) is None


def test_without_memory_a_container_gets_the_whole_gpu_or_the_default() -> None:
    assert need(gpu=1) == ContainerNeed(count=1, memory_mib=0, memory_percentage=100, cores=0)
    settings = RequestSettings(default_memory_mib=5000, default_cores=30)
    defaulted = read_request(pod(container(gpu=1)), settings)
    assert defaulted is not None
    assert defaulted.needs == (ContainerNeed(count=1, memory_mib=5000, memory_percentage=None, cores=30),)


@pytest.mark.parametrize(("percent", "reserved"), [(33, 5406), (100, 16384), (0, 16384)])
def test_a_percentage_is_of_the_gpu_it_lands_on(percent: int, reserved: int) -> None:
    found = need(gpu=1, gpumem_percentage=percent)
    assert found is not None
    assert found.reserved_mib(16384) == reserved


@pytest.mark.parametrize(
    ("percent", "problem"),
    [
        (-5, "must not be negative, found -5"),
        (101, "must be an integer between 0 and 100, found 101"),
        (150, "must be an integer between 0 and 100, found 150"),
        (10**30, "must be an integer between 0 and 100, found 1000"),
    ],
)
@pytest.mark.parametrize("beside", [{}, {"gpumem": 4096}], ids=["alone", "beside an amount"])
def test_a_percentage_that_no_gpu_has_is_refused_by_its_name(
    percent: int, problem: str, beside: dict[str, int]
) -> None:
    with pytest.raises(RequestError, match=f"container c: nvidia.com/gpumem-percentage: {problem}"):
        need(gpu=1, gpumem_percentage=percent, **beside)


def test_the_absolute_amount_wins_over_the_percentage_and_suffixes_are_honoured() -> None:
    found = need(gpu=1, gpumem="4k", gpumem_percentage=50)
    assert found is not None
    assert found.reserved_mib(16384) == 4000


def test_limits_win_and_requests_are_the_fallback() -> None:
    resources = Resources(
        limits={keys.RESOURCE_MEMORY: "10"}, requests={keys.RESOURCE_MEMORY: "20", "nvidia.com/gpu": 2}
    )
    found = request(pod(Container(name="c", resources=resources))).needs[0]
    assert found is not None
    assert (found.count, found.memory_mib) == (2, 10)


@pytest.mark.parametrize(("key", "amount"), [("gpu", "half"), ("gpu", "1.5"), ("gpumem", "-1"), ("gpucores", "much")])
def test_a_bad_quantity_names_container_and_key(key: str, amount: str) -> None:
    resources = Resources(limits={keys.RESOURCE_COUNT: 1, f"nvidia.com/{key}": amount})
    with pytest.raises(RequestError) as refused:
        request(pod(Container(name="main", resources=resources)))
    assert (refused.value.container, refused.value.key) == ("main", f"nvidia.com/{key}")


def test_memory_beyond_32_bits_is_refused_with_the_unit() -> None:
    with pytest.raises(RequestError, match="so 8 GiB is written 8192"):
        need(gpu=1, gpumem="8Gi")


def test_init_containers_come_first_and_sidecars_are_told_apart() -> None:
    wanted = pod(container(gpu=1), inits=[container("i"), container("s", "Always", gpu=1)])
    assert request(wanted).kinds == (ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP)
    assert [bool(each) for each in request(wanted).needs] == [False, True, True]


NAMES = ResourceNames(
    count="acme.io/gpu",
    memory="acme.io/mib",
    memory_percentage="acme.io/percent",
    cores="acme.io/cores",
    priority="acme.io/priority",
)


def named(**amounts: int | str) -> ContainerNeed | None:
    spelled: dict[str, str | int | float] = {f"acme.io/{name}": amount for name, amount in amounts.items()}
    asking = pod(Container(name="main", resources=Resources(limits={"nvidia.com/gpu": 8, **spelled})))
    found = read_request(asking, RequestSettings(names=NAMES))
    return None if found is None else found.needs[0]


def test_every_resource_may_have_another_name() -> None:
    assert named() is None
    assert named(gpu=2, mib=3000, cores=20, priority=1) == ContainerNeed(
        count=2, memory_mib=3000, memory_percentage=None, cores=20, priority=1
    )
    assert named(gpu=1, percent=25) == ContainerNeed(count=1, memory_mib=0, memory_percentage=25, cores=0)


@pytest.mark.parametrize("name", ["gpu", "mib", "percent", "cores", "priority"])
def test_a_bad_quantity_is_refused_under_the_name_it_was_given(name: str) -> None:
    with pytest.raises(RequestError, match=f"^container main: acme.io/{name}: expected a quantity such as"):
        named(**({"gpu": 1} | {name: "many"}))


def test_the_memory_factor_turns_units_into_mib() -> None:
    settings = RequestSettings(memory_factor=1024)
    found = read_request(pod(container(gpu=1, gpumem=8)), settings)
    assert found is not None
    assert found.needs == (ContainerNeed(count=1, memory_mib=8192, memory_percentage=None, cores=0),)
    with pytest.raises(RequestError, match=r"nvidia.com/gpumem: 2147483648 MiB is more than any GPU has"):
        read_request(pod(container(gpu=1, gpumem=2**21)), settings)


def test_each_container_of_a_pod_asks_for_itself() -> None:
    wanted = pod(container("a", gpu=1, gpumem=1), container("b"), container("c", gpu=2, gpucores=100))
    assert request(wanted).needs == (
        ContainerNeed(count=1, memory_mib=1, memory_percentage=None, cores=0),
        None,
        ContainerNeed(count=2, memory_mib=0, memory_percentage=100, cores=100),
    )
