from typing import Any

import msgspec
import pytest

from proto.kubernetes.objects import Pod
from scheduler_ext.quota_class import QuotaClass, Scope, ScopeError, quota_class

GPU = {"limits": {"nvidia.com/gpu": "1"}}
CPU = {"requests": {"cpu": "100m"}}


def spec(*resources: dict[str, Any], inits: tuple[dict[str, Any], ...] = (), **others: Any) -> dict[str, Any]:
    containers = [{"name": f"c{n}", "resources": each} for n, each in enumerate(resources)]
    init_containers = [{"name": f"i{n}", "resources": each} for n, each in enumerate(inits)]
    return {"containers": containers, "initContainers": init_containers, **others}


def of(written: dict[str, Any], **status: Any) -> QuotaClass:
    return quota_class(msgspec.convert({"metadata": {"name": "p"}, "spec": written, "status": status}, Pod))


@pytest.mark.parametrize(
    ("written", "best_effort"),
    [
        (spec(GPU), True),
        (spec(GPU, {"requests": {"ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"}}), True),
        (spec(GPU, CPU), False),
        (spec(GPU, inits=(CPU,)), False),
        (spec({"limits": {"memory": 1}}), False),
        (spec({"requests": {"cpu": "0", "memory": "0Ki"}, "limits": {"cpu": "0.0m"}}), True),
        (spec({"requests": {"cpu": "unreadable"}}), False),
        (spec(GPU, resources=CPU), False),
        (spec(CPU, resources={"limits": {"hugepages-2Mi": "2Mi"}}), True),
        (spec(CPU, resources={}), False),
        (spec(), True),
    ],
)
def test_a_pod_is_best_effort_unless_cpu_or_memory_is_asked_for(written: dict[str, Any], best_effort: bool) -> None:
    assert of(written).best_effort is best_effort


def test_the_qos_class_that_a_status_claims_is_not_believed() -> None:
    assert of(spec(CPU), qosClass="BestEffort") == QuotaClass(best_effort=False)


@pytest.mark.parametrize(("seconds", "terminating"), [(None, False), (0, True), (60, True), (-1, False)])
def test_a_pod_with_a_deadline_is_terminating(seconds: int | None, terminating: bool) -> None:
    assert of(spec(GPU, activeDeadlineSeconds=seconds)) == QuotaClass(terminating=terminating)


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(
    ("term", "crosses"),
    [
        ({"topologyKey": "zone"}, False),
        ({"namespaces": []}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, True),
    ],
)
def test_a_term_that_names_or_selects_namespaces_crosses_them(kind: str, term: dict[str, Any], crosses: bool) -> None:
    required = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}, term]}}
    preferred = {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}
    for affinity in (required, preferred):
        assert of(spec(GPU, affinity=affinity)).cross_namespace_affinity is crosses


def test_pods_of_one_class_share_it() -> None:
    assert of(spec(GPU, priorityClassName="low")) is of(spec(GPU, GPU, priorityClassName="low"))


PLAIN, LOW, HIGH = QuotaClass(), QuotaClass(priority_class="low"), QuotaClass(priority_class="high")


@pytest.mark.parametrize(
    ("scope", "included"),
    [
        (("PriorityClass", "In", ("low", "other")), [LOW]),
        (("PriorityClass", "NotIn", ("low",)), [PLAIN, HIGH]),
        (("PriorityClass", "Exists", ()), [LOW, HIGH]),
        (("PriorityClass", "DoesNotExist", ()), [PLAIN]),
        (("VolumeAttributesClass", "In", ("gold",)), []),
    ],
)
def test_priority_classes_are_told_apart_by_name(
    scope: tuple[str, str, tuple[str, ...]], included: list[QuotaClass]
) -> None:
    assert [each for each in (PLAIN, LOW, HIGH) if Scope(*scope).includes(each)] == included


@pytest.mark.parametrize(
    ("scope", "opposite", "included"),
    [
        ("Terminating", "NotTerminating", QuotaClass(terminating=True)),
        ("NotBestEffort", "BestEffort", QuotaClass(best_effort=False)),
        ("CrossNamespacePodAffinity", None, QuotaClass(cross_namespace_affinity=True)),
    ],
)
def test_of_two_opposite_scopes_every_pod_is_in_one(scope: str, opposite: str | None, included: QuotaClass) -> None:
    assert [Scope(scope).includes(each) for each in (PLAIN, included)] == [False, True]
    if opposite is not None:
        assert [Scope(opposite).includes(each) for each in (PLAIN, included)] == [True, False]


@pytest.mark.parametrize(
    ("scope", "sentence"),
    [
        (("Weekdays", "Exists", ()), "scope 'Weekdays': expected PriorityClass, BestEffort, "),
        (("", "", ()), "scope '': expected "),
        (
            ("PriorityClass", "Gt", ("low",)),
            "scope PriorityClass: operator 'Gt': expected In, NotIn, ",
        ),
        (("PriorityClass", "In", ()), "scope PriorityClass: operator In needs values"),
        (("Terminating", "DoesNotExist", ()), "scope Terminating: operator 'DoesNotExist': expected Exists"),
    ],
)
def test_what_the_api_server_does_not_accept_is_named(scope: tuple[str, str, tuple[str, ...]], sentence: str) -> None:
    with pytest.raises(ScopeError, match=sentence):
        Scope(*scope)
