"""What the Node says of GPUs that stay unhealthy, and that others' words stay."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.node.desired import NodePatch, is_met, patch_of
from deviceplugin.remediation.remedy import desired_condition, desired_marks
from deviceplugin.remediation.step import RemediationState, step
from deviceplugin.settings import RemediationSettings, Remedy
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_UNHEALTHY
from proto.annotations.unhealthy_since import decode_unhealthy, encode_unhealthy
from proto.kubernetes.objects import Node
from simulation.apiserver.patches import merge, strategic
from tests.deviceplugin.remediation.test_step import EVICT, GPUS, MINUTE, T0, seen

OTHERS: list[dict[str, Any]] = [{"key": "example.com/x", "effect": "NoExecute", "timeAdded": "2030-01-01T00:00:00Z"}]
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready", "lastX": "1"}
BLANK: dict[str, Any] = {
    "metadata": {"name": "n", "resourceVersion": "7", "annotations": {"a": "b"}},
    "spec": {"taints": OTHERS},
    "status": {"conditions": [READY]},
}


def state(*ill: str, well: int = 7) -> RemediationState:
    return step(RemediationState(), seen(*ill, well=well), T0, EVICT)[0]


def spoken(
    node: dict[str, Any], state: RemediationState, minutes: int, settings: RemediationSettings = EVICT
) -> dict[str, Any]:
    """The Node after what is due was written; then nothing is due any more."""
    now = T0 + minutes * MINUTE
    marks, condition = desired_marks(state, now, settings), desired_condition(state, now, settings)
    if (patch := patch_of(_read(node), marks, now)) is not None:
        node = merge(node, patch.body)
    if (patch := patch_of(_read(node), condition, now)) is not None:
        assert patch.of_status
        node = strategic(node, dict(patch.body))
    assert is_met(_read(node), marks)
    assert is_met(_read(node), condition)
    return node


def conditions(node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in node["status"]["conditions"]}


def _read(node: dict[str, Any]) -> Node:
    return msgspec.convert(node, Node)


def test_a_node_with_healthy_gpus_says_so() -> None:
    node = spoken(BLANK, state(well=8), 0)
    assert node | {"status": BLANK["status"]} == BLANK
    assert conditions(node) == {
        "Ready": READY,
        "TopoGPUHealthy": {
            "type": "TopoGPUHealthy",
            "status": "True",
            "reason": "GPUsHealthy",
            "message": "no GPU has been unhealthy for 10 min",
            "lastHeartbeatTime": "2030-01-01T00:00:00Z",
            "lastTransitionTime": "2030-01-01T00:00:00Z",
        },
    }


def test_since_when_is_written_at_once_and_the_condition_after_its_time() -> None:
    healthy = spoken(BLANK, state(well=8), 0)
    ill = spoken(healthy, state("GPU-a"), 1)
    assert ill["metadata"]["annotations"] == {"a": "b", NODE_UNHEALTHY: '{"GPU-a":"2030-01-01T00:00:00Z"}'}
    assert ill["status"] == healthy["status"]
    lasting = conditions(spoken(ill, state("GPU-a"), 12))
    assert lasting["Ready"] == READY
    assert lasting["TopoGPUHealthy"] == {
        "type": "TopoGPUHealthy",
        "status": "False",
        "reason": "GPUsUnhealthy",
        "message": "name of GPU-a since 2030-01-01T00:00:00Z: it does not answer",
        "lastHeartbeatTime": "2030-01-01T00:12:00Z",
        "lastTransitionTime": "2030-01-01T00:12:00Z",
    }


def test_another_gpu_changes_the_message_and_not_the_time_of_the_transition() -> None:
    node = spoken(BLANK, state("GPU-a"), 12)
    told = conditions(spoken(node, state("GPU-a", "GPU-b", well=6), 30))["TopoGPUHealthy"]
    assert (told["lastTransitionTime"], told["lastHeartbeatTime"]) == ("2030-01-01T00:12:00Z", "2030-01-01T00:30:00Z")


@pytest.mark.parametrize(
    ("remedy", "ill", "tainted"),
    [
        (Remedy.EVICT, 8, False),
        (Remedy.TAINT_ALL, 7, False),
        (Remedy.TAINT_ALL, 8, True),
        (Remedy.TAINT_ANY, 1, True),
        (Remedy.TAINT_ANY, 0, False),
    ],
)
def test_the_taint_stands_beside_others_while_its_gpus_stay_ill(remedy: Remedy, ill: int, tainted: bool) -> None:
    settings = replace(EVICT, remedies=(remedy,))
    taints = [*OTHERS, *([{"key": "topogpu.io/gpu-unhealthy", "effect": "NoSchedule"}] if tainted else [])]
    node = spoken(BLANK, state(*GPUS[:ill], well=8 - ill), 10, settings)
    assert node["spec"]["taints"] == taints
    assert spoken(node, state(well=8), 20, settings)["spec"]["taints"] == OTHERS


def test_taints_are_written_for_the_version_of_the_node_that_was_read() -> None:
    settings = replace(EVICT, remedies=(Remedy.TAINT_ANY,))
    tainted = patch_of(_read(BLANK), desired_marks(state(*GPUS), T0 + 10 * MINUTE, settings), T0)
    assert tainted is not None
    assert tainted.body["metadata"]["resourceVersion"] == "7"  # type: ignore[index]
    plain = patch_of(_read(BLANK), desired_marks(state(*GPUS), T0, EVICT), T0)
    since = {NODE_UNHEALTHY: encode_unhealthy(dict.fromkeys(GPUS, T0))}
    assert plain == NodePatch({"metadata": {"annotations": since}})


def test_switched_off_all_of_it_is_taken_away() -> None:
    node = spoken(BLANK, state(*GPUS), 10, replace(EVICT, remedies=(Remedy.TAINT_ANY,)))
    assert spoken(node, state(*GPUS), 20, RemediationSettings()) == BLANK


@given(
    st.dictionaries(st.text(max_size=30), st.integers(0, 10**9).map(lambda seconds: T0 + timedelta(seconds=seconds)))
)
def test_since_when_round_trips(since: dict[str, datetime]) -> None:
    assert decode_unhealthy(encode_unhealthy(since)) == since


@pytest.mark.parametrize("value", ["", "[]", '{"GPU-a":1}', '{"GPU-a":"soon"}', '{"GPU-a":"2030-01-01"}'])
def test_another_word_is_refused(value: str) -> None:
    with pytest.raises(AnnotationError, match=r"topogpu\.io/unhealthy-since"):
        decode_unhealthy(value)
