import msgspec

from proto.kubernetes.objects import Container, Pod, PodSpec, PodStatus, Resources
from proto.kubernetes.requests import requested, requested_resources

MEMORY = "nvidia.com/gpumem"


def container(amount: str | int, *, sidecar: bool = False) -> Container:
    resources = Resources(limits={MEMORY: amount})
    return Container(name="c", resources=resources, restart_policy="Always" if sidecar else "")


def pod(*app: Container, init: tuple[Container, ...] = (), phase: str = "Running") -> Pod:
    return Pod(spec=PodSpec(init_containers=list(init), containers=list(app)), status=PodStatus(phase=phase))


def test_containers_run_together_init_containers_one_after_the_other() -> None:
    assert requested(pod(container("1k"), container(500)), MEMORY) == 1500
    assert requested(pod(container(500), init=(container(900), container(700))), MEMORY) == 900
    assert requested(pod(container(500), init=(container(400),)), MEMORY) == 500


def test_a_sidecar_counts_beside_all_that_starts_after_it() -> None:
    first, sidecar, last = container(900), container(100, sidecar=True), container(850)
    assert requested(pod(container(500), init=(first, sidecar, last)), MEMORY) == 950
    assert requested(pod(container(860), init=(first, sidecar, last)), MEMORY) == 960


def test_a_pod_that_ended_asks_for_nothing() -> None:
    assert requested(pod(container(500), phase="Succeeded"), MEMORY) == 0
    assert requested(pod(container(500), phase="Failed"), MEMORY) == 0


def test_what_cannot_be_read_counts_as_nothing() -> None:
    assert requested(pod(container("many"), container(1)), MEMORY) == 1
    assert requested(pod(container(1)), "nvidia.com/gpucores") == 0


def test_the_names_are_those_of_all_containers() -> None:
    written = {"containers": [{"name": "a", "resources": {"requests": {"cpu": 1}}}]}
    written["initContainers"] = [{"name": "b", "resources": {"limits": {MEMORY: "1"}}}]
    assert requested_resources(msgspec.convert({"spec": written}, Pod)) == {"cpu", MEMORY}
