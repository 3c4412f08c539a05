import msgspec

from proto.kubernetes.objects import Container, Pod
from proto.kubernetes.requests import requested, requested_resources
from tests.builders import container, pod

MEMORY = "nvidia.com/gpumem"


def asking(amount: str | int, restart_policy: str = "") -> Container:
    return container(restart_policy=restart_policy, gpumem=amount)


def test_containers_run_together_init_containers_one_after_the_other() -> None:
    assert requested(pod(asking("1k"), asking(500)), MEMORY) == 1500
    assert requested(pod(asking(500), inits=(asking(900), asking(700))), MEMORY) == 900
    assert requested(pod(asking(500), inits=(asking(400),)), MEMORY) == 500


def test_a_sidecar_counts_beside_all_that_starts_after_it() -> None:
    first, sidecar, last = asking(900), asking(100, "Always"), asking(850)
    assert requested(pod(asking(500), inits=(first, sidecar, last)), MEMORY) == 950
    assert requested(pod(asking(860), inits=(first, sidecar, last)), MEMORY) == 960


def test_a_pod_that_ended_asks_for_nothing() -> None:
    assert requested(pod(asking(500), phase="Succeeded"), MEMORY) == 0
    assert requested(pod(asking(500), phase="Failed"), MEMORY) == 0


def test_what_cannot_be_read_counts_as_nothing() -> None:
    assert requested(pod(asking("many"), asking(1)), MEMORY) == 1
    assert requested(pod(asking(1)), "nvidia.com/gpucores") == 0


def test_the_names_are_those_of_all_containers() -> None:
    written = {"containers": [{"name": "a", "resources": {"requests": {"cpu": 1}}}]}
    written["initContainers"] = [{"name": "b", "resources": {"limits": {MEMORY: "1"}}}]
    assert requested_resources(msgspec.convert({"spec": written}, Pod)) == {"cpu", MEMORY}
