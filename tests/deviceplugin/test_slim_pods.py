from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation.decision import decided_devices, has_begun, held_by
from deviceplugin.container.edits import container_facts
from deviceplugin.node.totals import requested_totals
from deviceplugin.node.undecided import is_undecided
from deviceplugin.remediation.holders import holder_of
from deviceplugin.settings import TotalNames
from deviceplugin.slim_pods import LONGEST_DECISION, MOST_CONTAINERS, MOST_VARIABLES, slim
from deviceplugin.usage.used import NodeSample, node_usage
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import BIND_PHASE, DEVICES_ALLOCATED, MEMORY_RESIZE, MEMORY_WISH
from proto.annotations.memory_resize import (
    LONGEST_WISH,
    ResizeAnswer,
    ResizeState,
    answer_in,
    decode_wish,
    encode_answer,
    wish_in,
)
from proto.environment import CHOOSING, chosen_by, lifted_by, lifting
from proto.kubernetes.objects import Container, EnvVar, Pod
from tests.deviceplugin.gpus import INVENTORY, NODE, A, B, bound_annotations, share

GPU = "nvidia.com/gpu"
NAMES = TotalNames()
KIB = 1024


def written(
    *containers: dict[str, Any], annotations: Mapping[str, str] | None = None, phase: str = "Running", inits: int = 0
) -> dict[str, Any]:
    """As the API server has it, with what the daemon has no use for."""
    names = [{"name": f"c{number}", "image": "i", "args": ["a"] * 9, **each} for number, each in enumerate(containers)]
    state = {"running": {"startedAt": "2030-01-01T00:00:00Z"}}
    statuses = [{"name": each["name"], "containerID": f"containerd://{each['name']}", "state": state} for each in names]
    return {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "u",
            "labels": {"a": "b"},
            "annotations": annotations or {},
        },
        "spec": {"nodeName": NODE, "priority": 7, "initContainers": names[:inits], "containers": names[inits:]},
        "status": {"phase": phase, "initContainerStatuses": statuses[:inits], "containerStatuses": statuses[inits:]},
    }


def slimmed(pod: dict[str, Any]) -> Pod:
    found = msgspec.convert(pod, Pod)
    slim(found, GPU, tuple(NAMES))
    return found


def limits(**amounts: str) -> dict[str, Any]:
    asked = {name.replace("_", "/"): amount for name, amount in amounts.items()}
    return {"resources": {"limits": {"cpu": "1", **asked}, "requests": {"memory": "1Gi", **asked}}}


ONE_GPU = limits(**{GPU: "1", NAMES.memory: "3000"})
SHARES = ((share(A),), (), (share(B), share(A, 100)))


def test_all_that_the_daemon_reads_of_a_pod_with_gpus_stays() -> None:
    pod = written(ONE_GPU, {}, limits(**{GPU: "2"}), inits=1, annotations=bound_annotations(SHARES))
    whole, kept = msgspec.convert(pod, Pod), slimmed(pod)
    assert len(msgspec.json.encode(kept)) < len(msgspec.json.encode(whole))
    for read in (
        lambda pod: decided_devices(pod, DEVICES_ALLOCATED, GPU),
        lambda pod: held_by(pod, INVENTORY, GPU),
        lambda pod: holder_of(pod, {}, GPU),
        lambda pod: node_usage([pod], NodeSample(), {}),
        lambda pod: requested_totals(pod, NAMES),
        has_begun,
    ):
        assert msgspec.json.encode(read(kept)) == msgspec.json.encode(read(whole)), read
    assert requested_totals(kept, NAMES)[0] == 3000


def test_the_highest_priority_which_is_0_stays() -> None:
    asking = limits(**{GPU: "1", NAMES.priority: "0"})
    [kept] = slimmed(written(asking, annotations=bound_annotations(SHARES[:1]))).spec.containers
    assert container_facts("u", kept, NAMES.priority).priority == 0


def test_a_pod_without_a_decision_is_still_seen_to_ask() -> None:
    assert is_undecided(slimmed(written({}, ONE_GPU)), GPU)


def huge(count: int) -> str:
    return "x" * count


SHAPES = {
    "arguments": written({"args": [huge(1_000_000)]}),
    "containers": written(*[{}] * 6000),
    "variables": written({**ONE_GPU, "env": [{"name": f"V{n}", "value": "x" * 60} for n in range(10_000)]}),
    "limits by variables": written(
        {**ONE_GPU, "env": [{"name": f"CUDA_DEVICE_MEMORY_LIMIT_{n}", "value": "1"} for n in range(10_000)]}
    ),
    "one variable": written({**ONE_GPU, "env": [{"name": "CUDA_DISABLE_CONTROL", "value": huge(1_000_000)}]}),
    "annotations": written({}, annotations={f"a{n}": huge(1000) for n in range(200)}),
    "a decision": written(ONE_GPU, annotations=bound_annotations(SHARES) | {DEVICES_ALLOCATED: "a,b,1,1:" * 30_000}),
    "ended with a decision": written(
        ONE_GPU, phase="Failed", annotations=bound_annotations(SHARES) | {BIND_PHASE: "success", "a": huge(100_000)}
    ),
    "resources": written({"resources": {"limits": {f"a.b/c{n}": "1" for n in range(10_000)}}}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_pod_of_a_megabyte_takes_much_memory(shape: str) -> None:
    assert len(msgspec.json.encode(slimmed(SHAPES[shape]))) < 2 * KIB


def test_thousands_of_containers_that_ask_for_gpus_and_memory_count_and_stay_few() -> None:
    asking = {**ONE_GPU, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    pod = written(*[asking] * 6000, inits=10)
    kept = slimmed(pod)
    assert len(kept.all_containers) == MOST_CONTAINERS + 1
    assert len(kept.status.container_statuses) == MOST_CONTAINERS
    assert requested_totals(kept, NAMES) == requested_totals(msgspec.convert(pod, Pod), NAMES)
    assert all(container.env for container in kept.all_containers[1:])
    assert is_undecided(kept, GPU)


def test_a_container_that_asks_for_none_does_not_ask() -> None:
    assert slimmed(written(limits(**{GPU: "0"}))).all_containers == ()


@pytest.mark.parametrize(
    "beyond",
    [
        written(ONE_GPU, *[{}] * MOST_CONTAINERS, annotations=bound_annotations(SHARES)),
        written(
            {**ONE_GPU, "env": [{"name": "CUDA_DISABLE_CONTROL", "value": str(n)} for n in range(MOST_VARIABLES + 1)]},
            annotations=bound_annotations(SHARES[:1]),
        ),
        written(ONE_GPU, annotations=bound_annotations(SHARES[:1]) | {DEVICES_ALLOCATED: "x" * (LONGEST_DECISION + 1)}),
    ],
)
def test_a_pod_beyond_the_bounds_has_no_decision_and_is_seen_to_ask(beyond: dict[str, Any]) -> None:
    kept = slimmed(beyond)
    assert kept.metadata.annotations == {}
    assert [container.name for container in kept.all_containers] == ["", "c0"]
    assert is_undecided(kept, GPU)


NAMES_OF_VARIABLES = st.sampled_from([*CHOOSING, *lifting("default"), "CUDA_DEVICE_MEMORY_LIMIT_0", "PATH"])
VALUES = st.sampled_from(["", "0", "false", "true", "1", "none", "void", "all", "x" * 5000])
VARIABLES = st.builds(EnvVar, name=NAMES_OF_VARIABLES, value=VALUES, value_from=st.sampled_from([None, {"a": "b"}]))


@given(st.lists(VARIABLES, max_size=60))
def test_no_harmful_variable_is_lost(env: list[EnvVar]) -> None:
    pod = msgspec.convert(written(ONE_GPU), Pod)
    pod.spec.containers[0].env = env
    slim(pod, GPU, tuple(NAMES))
    [kept] = pod.spec.containers
    assert chosen_by(kept.env, gpus_set=True) == chosen_by(env, gpus_set=True)
    assert lifted_by(kept.env) == lifted_by(env)


def test_a_pod_whose_admission_ended_while_no_daemon_ran_keeps_what_it_was_to_get() -> None:
    pod = written(ONE_GPU, phase="Failed", annotations=bound_annotations(SHARES[:1]))
    assert slimmed(pod).metadata.annotations == bound_annotations(SHARES[:1])


def test_a_container_that_is_no_container_of_ours_is_not_needed() -> None:
    assert slimmed(written({})).all_containers == ()
    assert isinstance(slimmed(written(ONE_GPU)).all_containers[0], Container)


@pytest.mark.parametrize("text", ["8Gi@" + "\x01" * LONGEST_WISH, "x" * 9 * LONGEST_WISH])
def test_the_longest_answer_to_a_wish_is_read_in_whole(text: str) -> None:
    """A daemon that could not read its own promise would give a container more than that."""
    wish = wish_in({MEMORY_WISH: text})
    answer = ResizeAnswer(wish=wish, state=ResizeState.REFUSED, why="w" * KIB)
    found = slimmed(
        written(
            ONE_GPU, annotations={**bound_annotations(SHARES), MEMORY_WISH: text, MEMORY_RESIZE: encode_answer(answer)}
        )
    )
    assert answer_in(found.metadata.annotations) == answer
    assert wish_in(found.metadata.annotations) == wish
    with pytest.raises(AnnotationError, match="more than 4096 characters"):
        decode_wish(wish)
