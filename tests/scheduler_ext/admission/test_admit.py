"""The webhook's changes and refusals, each as the whole patch or the whole answer."""

from typing import Any

import pytest

from proto.admission import AdmissionVerdict, Json, TemplateReview
from scheduler_ext.admission.admit import Why, admit
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.admission.templates import admit_templates
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import BypassMode, CorePolicy
from tests.scheduler_ext.admission.pods import container, judged, patched, pod, review

OURS = {"op": "replace", "path": "/spec/schedulerName", "value": "topogpu-scheduler"}
LIMITS = "/spec/containers/0/resources/limits/nvidia.com~1"
ONE_GPU = {"op": "add", "path": f"{LIMITS}gpu", "value": "1"}
EXCLUSIVE = {"op": "add", "path": f"{LIMITS}gpucores", "value": "100"}


def added_env(name: str, value: str) -> Json:
    return {"op": "add", "path": "/spec/containers/0/env", "value": [{"name": name, "value": value}]}


def allowed(*patch: Json, message: str = "", warnings: tuple[str, ...] = ()) -> AdmissionVerdict:
    return AdmissionVerdict(allowed=True, message=message, patch=patch, warnings=warnings)


def denied(message: str) -> AdmissionVerdict:
    return AdmissionVerdict(allowed=False, code=403, message=message)


def failed(message: str) -> AdmissionVerdict:
    return AdmissionVerdict(allowed=False, code=500, message=message)


WITHOUT_PERCENTAGE = {
    "op": "remove",
    "path": "/spec/containers/0/resources/limits/nvidia.com~1gpumem-percentage",
}
HUNDRED_CORES = {
    "op": "replace",
    "path": "/spec/containers/0/resources/limits/nvidia.com~1gpucores",
    "value": "100",
}


@pytest.mark.parametrize(
    ("limits", "settings", "patch"),
    [
        pytest.param({"gpu": "1"}, {}, (EXCLUSIVE, OURS), id="a plain GPU is an exclusive one"),
        pytest.param({"gpu": "2", "gpumem": "3000"}, {}, (OURS,), id="a GPU with memory stays shareable"),
        pytest.param({"gpu": "1", "gpumem_percentage": "50"}, {}, (OURS,), id="so does a part of its memory"),
        pytest.param({"gpu": "1", "gpumem_percentage": "100"}, {}, (EXCLUSIVE, OURS), id="all its memory is all of it"),
        pytest.param(
            {"gpu": "1", "gpumem": "9", "gpumem_percentage": "100"},
            {},
            (EXCLUSIVE, OURS, WITHOUT_PERCENTAGE),
            id="the percentage decides on cores, the amount on memory",
        ),
        pytest.param({"gpu": "1", "gpucores": "150"}, {}, (HUNDRED_CORES, OURS), id="a GPU has 100 percent of cores"),
        pytest.param({"gpu": "1", "gpucores": "30"}, {}, (OURS,), id="cores asked for are cores given"),
        pytest.param({"gpumem": "3000"}, {}, (ONE_GPU, OURS), id="memory alone means one GPU"),
        pytest.param({"gpucores": "30"}, {}, (ONE_GPU, OURS), id="cores alone mean one GPU"),
        pytest.param({"gpumem_percentage": "100"}, {}, (ONE_GPU, EXCLUSIVE, OURS), id="a whole memory means one GPU"),
        pytest.param(
            {"gpumem": "1"}, {"default_gpus": 2}, (ONE_GPU | {"value": "2"}, OURS), id="or as many as is said"
        ),
        pytest.param({"gpumem": "3000"}, {"default_gpus": 0}, (), id="without a default it asks for nothing"),
        pytest.param({"gpu": "0"}, {}, (), id="a count of 0 asks for nothing"),
        pytest.param({"gpu": "0", "gpumem": "9"}, {}, (), id="a count of 0 is not made up for"),
        pytest.param({}, {}, (), id="a pod without GPUs stays as it is"),
        pytest.param({}, {"overwrite_env": True}, (added_env("NVIDIA_VISIBLE_DEVICES", "void"),), id="or sees none"),
        pytest.param({"gpu": "1", "gpumem": "9"}, {"overwrite_env": True}, (OURS,), id="who has GPUs sees them"),
        pytest.param({"priority": "1"}, {}, (added_env("CUDA_TASK_PRIORITY", "1"),), id="priority is an env"),
        pytest.param(
            {},
            {"requests": RequestSettings(core_policy=CorePolicy.FORCE)},
            (added_env("GPU_CORE_UTILIZATION_POLICY", "force"),),
            id="the core policy goes to every container",
        ),
        pytest.param(
            {"gpu": "1", "gpumem": "9"},
            {"runtime_class_name": "nvidia"},
            (OURS, {"op": "add", "path": "/spec/runtimeClassName", "value": "nvidia"}),
            id="the runtime class of GPU pods",
        ),
    ],
)
def test_what_is_changed(limits: dict[str, Any], settings: Any, patch: tuple[Json, ...]) -> None:
    verdict = judged(pod(container(**limits)), **settings)
    assert (verdict.allowed, verdict.code, verdict.message, verdict.warnings) == (True, 200, "", ())
    assert sorted(verdict.patch, key=str) == sorted(patch, key=str)


def test_init_containers_are_completed_as_well() -> None:
    verdict = judged(pod(container(), init=(container("setup", gpu="1"),)))
    path = "/spec/initContainers/0/resources/limits/nvidia.com~1gpucores"
    assert verdict == allowed(OURS, {"op": "add", "path": path, "value": "100"})


def test_a_runtime_class_of_the_pods_own_stays() -> None:
    own = pod(container(gpu="1", gpumem="9"), runtimeClassName="kata")
    assert judged(own, runtime_class_name="nvidia") == allowed(OURS)


def test_an_env_that_is_there_gets_the_value_and_one_that_has_it_stays() -> None:
    verdict = judged(pod(container(priority="1", env={"A": "a", "CUDA_TASK_PRIORITY": "0"})))
    path = "/spec/containers/0/env/1/value"
    assert verdict == allowed({"op": "replace", "path": path, "value": "1"})
    assert judged(pod(container(priority="1", env={"CUDA_TASK_PRIORITY": "1"}))) == allowed()


def test_the_last_of_several_entries_is_the_one_that_counts() -> None:
    twice = container(priority="1")
    source = {"configMapKeyRef": {"name": "c", "key": "k"}}
    twice["env"] = [{"name": "CUDA_TASK_PRIORITY", "value": "1"}, {"name": "CUDA_TASK_PRIORITY", "valueFrom": source}]
    (changed,) = patched(pod(twice), judged(pod(twice)))["spec"]["containers"]
    assert changed["env"] == [{"name": "CUDA_TASK_PRIORITY", "value": "1"}] * 2


@pytest.mark.parametrize("limits", [{"gpu": "1", "gpumem": "9"}, {}])
def test_what_only_the_scheduler_writes_is_stripped_and_the_authors_wishes_stay(limits: dict[str, Any]) -> None:
    owned = {
        "hami.io/vgpu-node": "n",
        "hami.io/vgpu-time": "1",
        "hami.io/vgpu-devices-to-allocate": "x",
        "hami.io/vgpu-devices-allocated": "x",
        "hami.io/vgpu-devices-anything": "x",
        "hami.io/vgpu-mig-allocations": "[]",
        "hami.io/bind-phase": "success",
        "hami.io/bind-time": "1",
        "topogpu.io/nudge": "1",
        "topogpu.io/gpu-memory-resize": "{}",
    }
    wishes = {
        "topogpu.io/gpu-memory": "1",
        "hami.io/gpu-scheduler-policy": "binpack",
        "nvidia.com/use-gpuuuid": "G0",
        "example.com/a~b": "1",
    }
    forged = pod(container(**limits), annotations=owned | wishes)
    forged["metadata"]["labels"] = {"hami.io/vgpu-node": "n", "app": "a"}
    verdict = judged(forged)
    removed = {operation["path"] for operation in verdict.patch if operation["op"] == "remove"}
    assert removed == {
        *(f"/metadata/annotations/{key.replace('/', '~1')}" for key in owned),
        "/metadata/labels/hami.io~1vgpu-node",
    }
    clean = patched(forged, verdict)["metadata"]
    assert (clean["annotations"], clean["labels"]) == (wishes, {"app": "a"})


STRIPPED = {"op": "remove", "path": "/metadata/annotations/hami.io~1vgpu-node"}


def test_the_pod_of_another_scheduler_is_stripped_and_else_left_alone() -> None:
    theirs = pod(container(gpu="1"), schedulerName="volcano", annotations={"hami.io/vgpu-node": "n"})
    assert judged(theirs) == allowed(STRIPPED, message="pod already has different scheduler assigned")


@pytest.mark.parametrize(
    ("name", "force", "handled"),
    [
        ("", True, True),
        ("", False, True),
        ("default-scheduler", True, True),
        ("default-scheduler", False, False),
        ("topogpu-scheduler", False, True),
        ("volcano", True, False),
    ],
)
def test_whose_pod_it_is(name: str, force: bool, handled: bool) -> None:
    verdict = judged(pod(container(gpu="1"), schedulerName=name), force_overwrite_default_scheduler=force)
    assert verdict.allowed
    assert (EXCLUSIVE in verdict.patch) is handled


def test_the_ignore_label_asks_for_nothing_but_stripping() -> None:
    ignored = pod(container(gpu="1", privileged=True), annotations={"hami.io/vgpu-node": "n"})
    ignored["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert judged(ignored) == allowed(STRIPPED)


def test_only_creation_is_judged() -> None:
    assert admit(review(pod(container(gpu="1")), "UPDATE"), AdmissionSettings()) == allowed()


@pytest.mark.parametrize(
    ("refused", "verdict"),
    [
        (pod(), denied("pod has no containers")),
        (pod(container("a", gpu="1", privileged=True)), denied("container a is privileged")),
        (
            pod(container("a", gpu="1"), container("b", privileged=True), init=(container("c", privileged=True),)),
            denied("container c is privileged"),
        ),
        (pod(container(gpu="1"), nodeName="n"), denied("pod has node assigned")),
        (pod(container(gpu="1", privileged=True), nodeName="n"), denied("container main is privileged")),
        (
            pod(container("c", gpu="1", gpumem_percentage="101")),
            failed(
                "invalid nvidia.com/gpumem-percentage value 101 in container c: must be an integer between 0 and 100"
            ),
        ),
        (
            pod(container("c", gpumem_percentage="500m")),
            failed(
                "invalid nvidia.com/gpumem-percentage value 500m in container c: must be an integer between 0 and 100"
            ),
        ),
        (
            pod(container("c", gpu="1", gpumem="500m")),
            failed("container c: nvidia.com/gpumem: expected a whole number, found '500m'"),
        ),
        (
            pod(container("c", gpumem="8Gi")),
            failed(
                "container c: nvidia.com/gpumem: 8589934592 MiB is more than any GPU has; "
                "the number counts MiB already, so 8 GiB is written 8192"
            ),
        ),
        (
            pod(container("c", priority="1500m")),
            failed("container c: nvidia.com/priority: expected a whole number, found '1500m'"),
        ),
        (
            pod(container("c", gpu="many")),
            failed("container c: nvidia.com/gpu: expected a quantity such as 1, 500m, 4k or 1Gi, found 'many'"),
        ),
        (
            pod(container("c", gpu="500m")),
            failed("container c: nvidia.com/gpu: expected a whole number, found '500m'"),
        ),
        (pod(container("c", gpu="-1")), failed("container c: nvidia.com/gpu: must not be negative, found -1")),
        (
            pod(container("c", gpu="8192")),
            denied(
                "container c: nvidia.com/gpu: 8192 GPUs are more than any node has; "
                "memory is asked for as nvidia.com/gpumem, in MiB"
            ),
        ),
    ],
)
def test_what_is_refused(refused: Json, verdict: AdmissionVerdict) -> None:
    assert judged(refused) == verdict


def test_every_answer_has_a_word_for_the_metrics() -> None:
    gpus, ignored = pod(container(gpu="1", gpumem="9")), pod(container(gpu="1"))
    ignored["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    all_gpus = container(env={"NVIDIA_VISIBLE_DEVICES": "all"})
    words = {
        Why.NOT_CREATED: admit(review(gpus, "UPDATE"), AdmissionSettings()),
        Why.IGNORED: judged(ignored),
        Why.OTHER_SCHEDULER: judged(pod(container(gpu="1"), schedulerName="volcano")),
        Why.NO_GPUS: judged(pod(container())),
        Why.GPUS: judged(gpus),
        Why.NO_CONTAINERS: judged(pod()),
        Why.BYPASS: judged(pod(all_gpus), requests=RequestSettings(deny_bypass=BypassMode.DENY)),
        Why.PRIVILEGED: judged(pod(container(gpu="1", privileged=True))),
        Why.NODE_ASSIGNED: judged(pod(container(gpu="1"), nodeName="n")),
        Why.TOO_MUCH: judged(pod(container(gpu="257"))),
        Why.QUOTA: judged(pod(container(gpu="1", gpumem="9")), Quota(memory_mib=1)),
        Why.UNREADABLE: judged(pod(container(gpu="many"))),
        Why.TEMPLATES: admit_templates(TemplateReview(object={}), AdmissionSettings(), lambda _: 0),
    }
    assert {why: verdict.reason for why, verdict in words.items()} == {why: why for why in Why}


@pytest.mark.parametrize(
    "harmless", [pod(container(privileged=True)), pod(container(), nodeName="n"), pod(container(gpu="0"), nodeName="n")]
)
def test_what_is_refused_to_gpu_pods_is_free_to_others(harmless: Json) -> None:
    assert judged(harmless) == allowed()


TIGHT = Quota(memory_mib=10_000, cores=150, gpus=4, used=Footprint(1, 4_000, 50))


@pytest.mark.parametrize(
    ("asking", "problem"),
    [
        (pod(container(gpu="2", gpumem="3000", gpucores="50")), ""),
        (
            pod(container(gpu="2", gpumem="3001", gpucores="50")),
            "the pod asks for 6002 MiB of GPU memory, and 4000 of the namespace's 10000 are taken",
        ),
        (
            pod(container(gpu="2", gpumem="3000", gpucores="51")),
            "the pod asks for 102 percent of GPU cores, and 50 of the namespace's 150 are taken",
        ),
        (pod(container(gpu="1", gpumem_percentage="90")), ""),
        (
            pod(container("a", gpu="1", gpumem="3001"), container("b", gpu="1", gpumem="3000")),
            "the pod asks for 6001 MiB of GPU memory, and 4000 of the namespace's 10000 are taken",
        ),
        (pod(container("a", gpu="1", gpumem="3000"), init=(container("b", gpu="1", gpumem="6000"),)), ""),
        (
            pod(container("a", gpu="1", gpumem="3000"), init=(container("b", gpu="1", gpumem="6001"),)),
            "the pod asks for 6001 MiB of GPU memory, and 4000 of the namespace's 10000 are taken",
        ),
        (
            pod(
                container("a", gpu="1", gpumem="3000"),
                init=(container("side", gpu="1", gpumem="3001") | {"restartPolicy": "Always"},),
            ),
            "the pod asks for 6001 MiB of GPU memory, and 4000 of the namespace's 10000 are taken",
        ),
        (pod(container()), ""),
        (pod(container(gpu="3", gpumem="1")), ""),
        (
            pod(container(gpu="4", gpumem="1")),
            "the pod asks for 4 GPUs, and 1 of the namespace's 4 are taken",
        ),
        (
            pod(container("a", gpu="2", gpumem="1"), container("b", gpu="2", gpumem="1")),
            "the pod asks for 4 GPUs, and 1 of the namespace's 4 are taken",
        ),
        (pod(container("a", gpu="3", gpumem="1"), init=(container("b", gpu="3", gpumem="1"),)), ""),
    ],
)
def test_a_quota_is_held_by_what_the_pod_has_at_its_peak(asking: Json, problem: str) -> None:
    verdict = judged(asking, TIGHT)
    assert verdict.message == (f"exceeding resource quota: {problem}" if problem else "")
    assert (verdict.allowed, verdict.code) == ((False, 403) if problem else (True, 200))


def test_quota_counts_units_of_the_memory_factor() -> None:
    asking = pod(container(gpu="1", gpumem="7"))
    assert judged(asking, TIGHT, requests=RequestSettings(memory_factor=1000)).code == 403
    assert judged(asking, TIGHT, requests=RequestSettings(memory_factor=100)).code == 200


def test_an_unknown_policy_is_warned_of_when_the_pod_is_created() -> None:
    asking = pod(container(gpu="1", gpumem="9"), annotations={"hami.io/node-scheduler-policy": "tidy"})
    warning = "hami.io/node-scheduler-policy: unknown node policy 'tidy'; placed by the cluster's, binpack"
    assert judged(asking) == allowed(OURS, warnings=(warning,))


def test_bad_weights_are_warned_of_too() -> None:
    asking = pod(container(gpu="1", gpumem="9"), annotations={"hami.io/device-scoring-weights": "slot=1"})
    (warning,) = judged(asking).warnings
    assert warning.startswith("hami.io/device-scoring-weights: slot, core and memory are all needed")
    assert warning.endswith("; the pod stays Pending")


@pytest.mark.parametrize(
    ("name", "value", "with_gpu", "without_gpu"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "all", True, True),
        ("NVIDIA_VISIBLE_DEVICES", "void", False, False),
        ("CUDA_DISABLE_CONTROL", "true", True, False),
        ("LD_PRELOAD", "/x.so", True, False),
    ],
)
def test_what_becomes_of_a_variable_that_chooses_or_lifts_by_who_asks_for_gpus_and_the_setting(
    name: str, value: str, with_gpu: bool, without_gpu: bool
) -> None:
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"gpu": "1", "gpumem": "9"}, with_gpu),
        ({"gpumem": "9"}, with_gpu),
        ({"gpu": "0", "gpumem": "9"}, without_gpu),
        ({}, without_gpu),
    )
    for limits, lifts in cases:
        shown = pod(container(env={name: value}, **limits))
        refused = judged(shown, requests=RequestSettings(deny_bypass=BypassMode.DENY))
        warned = judged(shown, requests=RequestSettings(deny_bypass=BypassMode.AUDIT))
        assert refused.allowed is not lifts
        assert refused.message.startswith(f"container main: env {name}: ") is lifts
        assert (warned.allowed, warned.warnings) == (True, (refused.message,) if lifts else ())
        assert (warned.reason == refused.reason == Why.BYPASS) is lifts
        assert judged(shown) == refused
        assert judged(shown, requests=RequestSettings(deny_bypass=BypassMode.OFF)).warnings == ()


def test_all_gpus_cannot_be_had_by_naming_another_scheduler() -> None:
    shown = pod(container(env={"NVIDIA_VISIBLE_DEVICES": "all"}), schedulerName="volcano")
    assert judged(shown, requests=RequestSettings(deny_bypass=BypassMode.DENY)) == denied(
        "container main: env NVIDIA_VISIBLE_DEVICES: chooses GPUs past the scheduler; "
        "remove it and ask for GPUs by resource"
    )


@pytest.mark.parametrize(
    ("asking", "priority"),
    [
        (container("c", gpu="1", priority="1"), 1),
        (container("c", gpu="1", gpumem="1000", priority="3"), 3),
        (container("c", gpu="1", gpucores="30", priority="1"), None),
        (container("c", gpu="1", priority="0"), None),
        (container("c", gpu="1"), None),
    ],
)
def test_a_priority_that_makes_nothing_wait_is_told(asking: Json, priority: int | None) -> None:
    told = f"container c: nvidia.com/priority {priority} makes it wait for no other without"
    assert judged(pod(asking)).warnings == (() if priority is None else (f"{told} nvidia.com/gpucores from 1 to 99",))
