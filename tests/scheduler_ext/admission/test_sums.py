"""The sums that the webhook writes into containers, and into the templates of Jobs."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.admission import MOST_CONTAINERS, Json, TemplateReview, decode_template_review
from proto.annotations.keys import RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, USE_GPU_TYPE
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import requested
from proto.kubernetes.wire import decode_object
from scheduler_ext.admission.admit import admit
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.admission.templates import MOST_TEMPLATES, admit_templates
from scheduler_ext.cluster.accounting import least
from scheduler_ext.cluster.nodes import GpuSizes
from scheduler_ext.requests import RequestSettings, container_kinds, read_needs
from tests.scheduler_ext.admission.pods import container, patched, pod, review
from tests.scheduler_ext.gpus import device

SUMMING = AdmissionSettings(gpu_sums=True)
SIDECAR = {**container("s", gpu="1", gpumem="500"), "restartPolicy": "Always"}
SIZES = GpuSizes()
SIZES.apply([device(0, memory_mib=40960), replace(device(1, memory_mib=81920), type="NVIDIA H100")])


def completed(made: Json, settings: AdmissionSettings = SUMMING, sizes: GpuSizes = SIZES) -> Pod:
    verdict = admit(review(made), settings, None, sizes.smallest)
    assert verdict.allowed, verdict.message
    changed = patched(made, verdict)
    assert admit(review(changed), settings, None, sizes.smallest).patch == ()
    return decode_object(Pod, json.dumps(changed).encode())


def sums(made: Json, **more: Any) -> tuple[int, int]:
    """MiB and percent of cores, as kube-scheduler, kubelet, quotas, autoscalers and Kueue count them for the pod."""
    read = completed(made, **more)
    return requested(read, RESOURCE_MEMORY_SUM), requested(read, RESOURCE_CORES_SUM)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (pod(container(gpu="2", gpumem="3000", gpucores="30")), (6000, 60)),
        (pod(container(gpu="8")), (8 * 40960, 800)),
        (pod(container(gpu="2", gpumem_percentage="50")), (40960, 0)),
        (pod(container(gpu="1", gpucores="30")), (40960, 30)),
        (pod(container(gpumem="1000")), (1000, 0)),
        (pod(container("a", gpu="2", gpumem="1000"), container("b", gpu="1", gpumem="4000")), (6000, 0)),
        (pod(container("a", gpu="1", gpumem="1000"), container("b")), (1000, 0)),
        (pod(container("a", gpu="1", gpumem="1000"), init=(container("i", gpu="2", gpumem="3000"),)), (6000, 0)),
        (
            pod(
                container("a", gpu="1", gpumem="1000"),
                init=(SIDECAR, container("i", gpu="1", gpumem="700")),
            ),
            (1500, 0),
        ),
        (pod(container(gpu="1"), annotations={USE_GPU_TYPE: "H100"}), (81920, 100)),
        (pod(container(gpu="1"), annotations={USE_GPU_TYPE: "L40"}), (0, 100)),
        (pod(container()), (0, 0)),
    ],
)
def test_sums_of_a_pod_are_what_its_containers_have_together(made: Json, found: tuple[int, int]) -> None:
    assert sums(made) == found


def test_sums_of_whole_gpus_are_without_memory_until_a_gpu_was_seen() -> None:
    assert sums(pod(container(gpu="2")), sizes=GpuSizes()) == (0, 200)


def test_a_gpu_of_unknown_memory_does_not_make_whole_gpus_count_for_nothing() -> None:
    sizes = GpuSizes()
    sizes.apply([device(0, memory_mib=40960), device(1, memory_mib=0)])
    assert sums(pod(container(gpu="2")), sizes=sizes) == (81920, 200)


def test_sums_that_the_author_wrote_are_replaced_or_taken_away() -> None:
    claimed = {RESOURCE_MEMORY_SUM: "1"}
    first = container("a", gpu="2", gpumem="1000")
    first["resources"] = {"limits": {**first["resources"]["limits"], **claimed}, "requests": {**claimed}}
    second = {**container("b"), "resources": {"limits": {**claimed}, "requests": {**claimed}}}
    read = completed(pod(first, second))
    with_gpus, without = read.spec.containers
    assert with_gpus.resources.limits[RESOURCE_MEMORY_SUM] == "2000"
    assert with_gpus.resources.requests == {RESOURCE_MEMORY_SUM: "2000"}
    assert (without.resources.limits, without.resources.requests) == ({}, {})


@pytest.mark.parametrize("made", [pod(container(gpu="1"), schedulerName="volcano"), pod(container(gpu="x"))])
def test_no_sums_are_written_for_other_schedulers_or_for_what_cannot_be_read(made: Json) -> None:
    assert RESOURCE_CORES_SUM not in json.dumps(admit(review(made), SUMMING, None, SIZES.smallest).patch)


def test_no_sums_are_written_without_the_setting() -> None:
    assert sums(pod(container(gpu="2", gpumem="3000")), settings=AdmissionSettings()) == (0, 0)


CONTAINER = st.builds(
    lambda gpus, memory, cores, sidecar: (
        container(gpu=str(gpus), gpumem=str(memory), gpucores=str(cores))
        | ({"restartPolicy": "Always"} if sidecar else {})
    ),
    *(st.integers(1, 3), st.integers(1, 9), st.integers(1, 99), st.booleans()),
)


@given(st.lists(CONTAINER, min_size=1, max_size=4), st.lists(CONTAINER, max_size=4))
def test_sums_are_the_least_that_the_pod_holds_of_its_gpus_at_its_peak(apps: list[Json], inits: list[Json]) -> None:
    read = completed(pod(*apps, init=tuple(inits)))
    needs = read_needs(read.all_containers, RequestSettings())
    held = least(container_kinds(read), needs)
    assert (requested(read, RESOURCE_MEMORY_SUM), requested(read, RESOURCE_CORES_SUM)) == (held.memory_mib, held.cores)


def template(*containers: Json, **spec: Any) -> Json:
    made = pod(*containers, **spec)
    return {"metadata": {"annotations": {}}, "spec": {**made["spec"], "schedulerName": ""}}


def summed(document: Json) -> Json:
    verdict = admit_templates(TemplateReview(object=document), SUMMING, SIZES.smallest)
    assert verdict.allowed
    return patched(document, verdict)


def limits(found: Json) -> Json:
    read: Json = found["spec"]["containers"][0]["resources"].get("limits", {})
    return read


def test_sums_are_written_into_the_template_of_a_job_and_nothing_else_changes() -> None:
    job = {"kind": "Job", "spec": {"parallelism": 2, "template": template(container(gpu="8"))}}
    found = summed(job)
    assert limits(found["spec"]["template"]) == {
        "nvidia.com/gpu": "8",
        RESOURCE_MEMORY_SUM: str(8 * 40960),
        RESOURCE_CORES_SUM: "800",
    }
    found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "8"}
    assert found == job


def test_sums_are_written_wherever_an_object_has_a_template() -> None:
    part = template(container(gpu="1", gpumem="5"))
    document = {"spec": {"jobs": [{"a/b": {"spec": {"template": part}}}, {"group": {"template": part}}]}}
    found = summed(document)["spec"]["jobs"]
    assert limits(found[0]["a/b"]["spec"]["template"])[RESOURCE_MEMORY_SUM] == "5"
    assert limits(found[1]["group"]["template"])[RESOURCE_MEMORY_SUM] == "5"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"spec": None},
        {"spec": {"template": {"spec": {"containers": [1]}}}},
        {"spec": {"template": template(container(gpu="many"))}},
        {"spec": {"template": {"spec": {"containers": [container(gpu="1")], "schedulerName": "volcano"}}}},
        {"spec": {"template": template(container())}},
    ],
)
def test_templates_that_cannot_be_summed_up_stay_as_they_are(document: Json) -> None:
    assert summed(document) == document


def test_templates_beyond_a_bound_are_not_looked_at() -> None:
    document = {"spec": [{"template": template(container(gpu="1"))}] * (MOST_TEMPLATES + 1)}
    verdict = admit_templates(TemplateReview(object=document), SUMMING, SIZES.smallest)
    assert len({operation["path"].split("/")[2] for operation in verdict.patch}) == MOST_TEMPLATES


def test_templates_beyond_so_many_containers_or_bytes_of_resources_are_not_looked_at() -> None:
    small, many = template(container(gpu="1")), template(*[container(gpu="1")] * (MOST_CONTAINERS + 1))
    amounts: dict[str, Any] = {f"r{number}": "1" for number in range(9_000)}
    large = template(container(gpu="1", **amounts))
    for beyond in (many, large):
        verdict = admit_templates(TemplateReview(object={"spec": [small, beyond, small]}), SUMMING, SIZES.smallest)
        assert {operation["path"].split("/")[2] for operation in verdict.patch} == {"0"}


def test_a_review_of_templates_is_read_as_one_of_a_pod_is() -> None:
    body = msgspec.json.encode({"request": {"uid": "u", "object": {"spec": {}}}})
    read = decode_template_review(body)
    assert (read.identity.uid, read.object) == ("u", {"spec": {}})
