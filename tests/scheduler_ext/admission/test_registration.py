"""Which pods the API server shows the webhook: the match conditions, evaluated."""

import json
from functools import cache
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given

from proto.admission import Json
from scheduler_ext.admission.admit import admit
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.requests import RequestSettings, ResourceNames
from scheduler_ext.settings import BypassMode, CorePolicy
from tests.scheduler_ext.admission.pods import container, pod, review
from tests.scheduler_ext.admission.test_laws import PODS
from tests.scheduler_ext.admission.webhook_conditions import chooses_gpus, mentions_gpus, mentions_owned
from tests.scheduler_ext.admission.webhook_configuration import webhook_configuration

GPUS, OWNED, BYPASS = mentions_gpus(ResourceNames()), mentions_owned(), chooses_gpus(ResourceNames())
SERVICE = {"service": {"namespace": "kube-system", "name": "topogpu-webhook"}}


@cache
def program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def holds(expression: str, shown: Json) -> bool:
    return bool(program(expression).evaluate({"object": json_to_cel(json.loads(json.dumps(shown)))}))


CPU = {"name": "c", "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}}}


@pytest.mark.parametrize(
    ("shown", "gpus", "owned"),
    [
        (pod(container(gpu="1")), True, False),
        (pod(CPU, container(gpumem="1")), True, False),
        (pod(CPU, init=(container(gpucores="1"),)), True, False),
        (pod(container(gpumem_percentage="1")), True, False),
        (pod(container(priority="1")), True, False),
        (pod(container()), False, False),
        (pod({"name": "c"}), False, False),
        (pod(CPU, init=(CPU,)), False, False),
        (pod(container(gpu="1"), annotations={"hami.io/bind-time": "1"}), True, True),
        (pod(CPU, annotations={"hami.io/vgpu-node": "n"}), False, True),
        (pod(CPU, annotations={"hami.io/vgpu-devices-of-somebody": "x"}), False, True),
        (pod(CPU, annotations={"hami.io/gpu-scheduler-policy": "spread", "a": "b"}), False, False),
        ({"metadata": {"labels": {"hami.io/vgpu-node": "n"}}, "spec": {}}, False, True),
        ({"metadata": {"labels": {"app": "a"}}, "spec": {}}, False, False),
    ],
)
def test_who_is_concerned(shown: Json, gpus: bool, owned: bool) -> None:
    assert (holds(GPUS, shown), holds(OWNED, shown)) == (gpus, owned)


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, True),
        ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-a"}, True),
        ({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}, True),
        ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}, False),
        ({"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}, False),
        ({"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}, False),
        ({"name": "CUDA_VERSION", "value": "11.0"}, True),
        ({"name": "NVIDIA_NVSWITCH", "value": "enabled"}, True),
        ({"name": "LD_PRELOAD", "value": "/x.so"}, False),
    ],
)
def test_a_pod_without_gpus_is_shown_if_it_names_gpus_in_its_environment(variable: Json, shown: bool) -> None:
    one = {"name": "c", "env": [{"name": "A", "value": "b"}, variable]}
    assert holds(BYPASS, pod(one)) is holds(BYPASS, pod(CPU, init=(one,))) is shown
    assert not holds(BYPASS, pod(CPU))


def test_resources_of_other_names_are_looked_for_by_those_names() -> None:
    renamed = mentions_gpus(ResourceNames(count="example.com/gpu"))
    assert holds(renamed, pod({"name": "c", "resources": {"limits": {"example.com/gpu": "1"}}}))
    assert not holds(renamed, pod(container(gpu="1")))


def as_the_api_server_shows_it(members: Json) -> Json:
    """Without nulls, and without requests of ours: one that has no limit is not accepted, one that has adds nothing."""
    return {key: value for key, value in members.items() if value is not None and key != "requests"}


@given(PODS)
def test_a_pod_that_no_condition_selects_would_not_have_been_changed(shown: Json) -> None:
    present = json.loads(json.dumps(shown), object_hook=as_the_api_server_shows_it)
    if not any(holds(condition, present) for condition in (GPUS, OWNED, BYPASS)):
        verdict = admit(review(present), AdmissionSettings())
        assert (verdict.allowed, verdict.patch) == (True, ())


def requests(**changes: Any) -> AdmissionSettings:
    return AdmissionSettings(requests=RequestSettings(**changes))


def policies(how: AdmissionSettings) -> dict[str, str]:
    webhooks = webhook_configuration("w", SERVICE, how)["webhooks"]
    return {each["name"].partition(".")[0]: each["failurePolicy"] for each in webhooks}


def test_what_may_be_refused_fails_closed_and_other_pods_are_shown_only_if_there_is_something_to_do() -> None:
    closed = {"gpus": "Fail", "annotations": "Fail", "bypass": "Fail"}
    assert policies(AdmissionSettings()) == closed
    assert policies(requests(deny_bypass=BypassMode.AUDIT)) == closed | {"bypass": "Ignore"}
    assert policies(requests(deny_bypass=BypassMode.OFF)) == {
        "gpus": "Fail",
        "annotations": "Fail",
    }
    for how in (
        AdmissionSettings(overwrite_env=True),
        requests(core_policy=CorePolicy.FORCE),
    ):
        assert policies(how) == closed | {"environment": "Ignore"}


def test_every_pod_fails_closed_at_most_if_it_is_concerned() -> None:
    configuration = webhook_configuration("w", SERVICE, AdmissionSettings(overwrite_env=True))
    for webhook in configuration["webhooks"]:
        (condition,) = webhook["matchConditions"]
        open_to_others = holds(condition["expression"], pod(CPU))
        assert open_to_others == (webhook["failurePolicy"] == "Ignore")


def test_excluded_namespaces_and_the_ignore_label_are_no_way_around_stripping() -> None:
    webhooks = webhook_configuration("w", SERVICE, AdmissionSettings(), ["kube-system"])["webhooks"]
    gpus, owned, bypass = webhooks
    ignored = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    by_name = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    assert gpus["objectSelector"] == {"matchExpressions": [ignored]}
    assert gpus["namespaceSelector"] == {"matchExpressions": [ignored, by_name]}
    assert bypass["namespaceSelector"] == gpus["namespaceSelector"]
    assert "objectSelector" not in owned
    assert "namespaceSelector" not in owned


def test_pods_without_gpus_may_see_every_gpu_where_monitoring_runs() -> None:
    settings = AdmissionSettings(overwrite_env=True)
    webhooks = webhook_configuration("w", SERVICE, settings, ["a"], ["gpu-operator"])["webhooks"]
    gpus, _, *others = [webhook.get("namespaceSelector") for webhook in webhooks]
    ignored = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    by_name = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
    assert gpus == {"matchExpressions": [ignored, {**by_name, "values": ["a"]}]}
    assert others == [{"matchExpressions": [ignored, {**by_name, "values": ["a", "gpu-operator"]}]}] * 2


def test_a_url_stands_as_it_is_and_a_service_gets_the_path() -> None:
    by_url = webhook_configuration("w", {"url": "https://127.0.0.1:1/webhook"}, AdmissionSettings())
    assert by_url["webhooks"][0]["clientConfig"] == {"url": "https://127.0.0.1:1/webhook"}
    by_service = webhook_configuration("w", SERVICE, AdmissionSettings())["webhooks"][0]["clientConfig"]
    assert by_service == {"service": {"path": "/webhook", "namespace": "kube-system", "name": "topogpu-webhook"}}
