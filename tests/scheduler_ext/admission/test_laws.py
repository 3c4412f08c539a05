"""Laws of the webhook's patches, over random documents and random pods."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proto.admission import Json
from proto.annotations.keys import RESOURCE_CORES, RESOURCE_MEMORY, RESOURCE_MEMORY_PERCENTAGE
from proto.quantity import integer_quantity
from scheduler_ext.admission.admit import admit, difference
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import BypassMode, CorePolicy
from simulation.apiserver.patches import json_patch
from tests.scheduler_ext.admission.pods import patched, pod, review

KEYS = st.sampled_from(["a", "b/c", "d~e", "~1", ""])
DOCUMENTS = st.recursive(
    st.none() | st.integers(0, 3) | st.text("xyz", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(DOCUMENTS, DOCUMENTS)
def test_the_difference_applied_to_the_one_is_the_other(before: Any, after: Any) -> None:
    operations = list(difference(before, after))
    assert json_patch(before, operations) == after
    assert (operations == []) == (before == after)


AMOUNTS = st.dictionaries(
    st.sampled_from(["gpu", "gpumem", "gpumem-percentage", "gpucores", "priority"]).map("nvidia.com/{}".format),
    st.sampled_from(["0", "1", "2", "50", "100"]),
)
ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["CUDA_TASK_PRIORITY", "NVIDIA_VISIBLE_DEVICES", "GPU_CORE_UTILIZATION_POLICY", "X"])},
        optional={"value": st.sampled_from(["", "none", "1"])},
    ),
    max_size=3,
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.just("c")},
    optional={
        "resources": st.none() | st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS}),
        "env": st.none() | ENV,
    },
)
PODS = st.builds(
    lambda apps, inits, annotations, scheduler: pod(
        *apps, init=tuple(inits), annotations=annotations, schedulerName=scheduler
    ),
    st.lists(CONTAINERS, min_size=1, max_size=3),
    st.lists(CONTAINERS, max_size=2),
    st.dictionaries(st.sampled_from(["hami.io/vgpu-node", "hami.io/vgpu-devices-x", "mine"]), st.just("x")),
    st.sampled_from(["", "default-scheduler", "topogpu-scheduler", "volcano"]),
)
SETTINGS = st.builds(
    AdmissionSettings,
    requests=st.builds(RequestSettings, core_policy=st.sampled_from(CorePolicy), deny_bypass=st.just(BypassMode.AUDIT)),
    default_gpus=st.integers(0, 2),
    runtime_class_name=st.sampled_from(["", "nvidia"]),
    overwrite_env=st.booleans(),
    force_overwrite_default_scheduler=st.just(True),
)


@given(PODS, SETTINGS)
def test_a_patched_pod_shown_again_is_not_patched_again(shown: Json, how: AdmissionSettings) -> None:
    before = json.dumps(shown)
    first = admit(review(shown), how)
    assert json.dumps(shown) == before
    assert first.allowed
    after = patched(shown, first)
    second = admit(review(after), how)
    assert (second.allowed, second.patch) == (True, ())
    assert not any(key.startswith("hami.io/") for key in after["metadata"].get("annotations", {}))


def counting(amounts: Json) -> Json:
    """Without what no decision is taken by: a percentage beside an amount, cores beyond those of a GPU."""
    without = {RESOURCE_MEMORY_PERCENTAGE} if integer_quantity(amounts.get(RESOURCE_MEMORY, 0)) > 0 else set[str]()
    if integer_quantity(amounts.get(RESOURCE_CORES, 0)) > 100:
        without.add(RESOURCE_CORES)
    return {name: amount for name, amount in amounts.items() if name not in without}


@given(PODS, SETTINGS)
def test_nothing_the_author_asked_for_is_taken_away_or_changed_but_what_counts_for_nothing(
    shown: Json, how: AdmissionSettings
) -> None:
    after = patched(shown, admit(review(shown), how))["spec"]
    for field in ("containers", "initContainers"):
        for wanted, given_ in zip(shown["spec"].get(field, []), after.get(field, []), strict=True):
            for part, amounts in (wanted.get("resources") or {}).items():
                assert counting(amounts).items() <= given_["resources"][part].items()
            assert [entry["name"] for entry in wanted.get("env") or []] == [
                entry["name"] for entry in given_.get("env") or []
            ][: len(wanted.get("env") or [])]
