import json

from deviceplugin.doctor.annotations import judge_labels, judge_without_labels
from deviceplugin.doctor.finding import FindingState
from proto.annotations.keys import NODE_LABELS
from proto.kubernetes.objects import Node
from tests.builders import node

COUNT, PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.product"
WANTED = {COUNT: "8", PRODUCT: "A100"}


def labelled(labels: dict[str, str], written: dict[str, str]) -> Node:
    note = json.dumps(written, separators=(",", ":"), sort_keys=True)
    return node(labels=labels, annotations={NODE_LABELS: note} if written else {})


def test_labels_that_stand_are_told() -> None:
    found = judge_labels(labelled(WANTED, WANTED), WANTED, daemon_serves=True)
    assert (found.state, found.explanation) == (FindingState.OK, "The Node has 2 labels of its GPUs.")


def test_labels_of_another_writer_are_a_warning_that_names_them() -> None:
    found = judge_labels(labelled(WANTED, {}), WANTED, daemon_serves=True)
    assert found.state is FindingState.WARNING
    assert "Another program writes them: nvidia.com/gpu.count and nvidia.com/gpu.product" in found.explanation


def test_labels_that_a_running_daemon_has_not_written_are_a_problem() -> None:
    found = judge_labels(labelled({COUNT: "8"}, {COUNT: "8"}), WANTED, daemon_serves=True)
    assert found.state is FindingState.PROBLEM
    assert "1 of 2 are missing or have other values: nvidia.com/gpu.product" in found.explanation
    assert judge_labels(labelled({}, {}), WANTED, daemon_serves=False).state is FindingState.SKIPPED


def test_switched_off_labels_that_are_left_are_a_problem_and_those_of_others_are_not() -> None:
    assert judge_without_labels(labelled(WANTED, {COUNT: "8"})).state is FindingState.PROBLEM
    assert judge_without_labels(labelled(WANTED, {})).state is FindingState.OK
