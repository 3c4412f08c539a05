import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.node.desired import NO_TIME, Desired, is_met, patch_of
from deviceplugin.node.labels import LabelReport, label_report, labels_of_ours
from proto.annotations.keys import NODE_LABELS
from proto.kubernetes.objects import Node
from tests.builders import node

COUNT, PRODUCT, STAMP = "nvidia.com/gpu.count", "nvidia.com/gpu.product", "nvidia.com/gfd.timestamp"
CLAIMS = "nfd.node.kubernetes.io/feature-labels"
WANTED = {COUNT: "8", PRODUCT: "A100"}
values = st.sampled_from(["8", "4", "A100"])
names = st.sampled_from([COUNT, PRODUCT, "nvidia.com/gpu.family", "nvidia.com/gpu.present", "kubernetes.io/os"])


def labelled(labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Node:
    return node(labels=labels, annotations=annotations, resource_version="7")


def ours(**written: str) -> dict[str, str]:
    return {NODE_LABELS: json.dumps(written, separators=(",", ":"), sort_keys=True)}


def body(node: Node, report: LabelReport) -> Any:
    """The patch that is due; None if none is."""
    patch = patch_of(node, report.desired, NO_TIME)
    return None if patch is None else patch.body


def patched(node: Node, change: Desired | Mapping[str, Any]) -> Node:
    """As a merge patch leaves it."""
    if isinstance(change, Desired):
        patch = patch_of(node, change, NO_TIME)
        change = {} if patch is None else patch.body
    changes: Any = change.get("metadata", {})

    def merged(part: str) -> dict[str, str]:
        after = {**getattr(node.metadata, part), **changes.get(part, {})}
        return {name: value for name, value in after.items() if value is not None}

    return labelled(merged("labels"), merged("annotations"))


def written(node: Node) -> Node:
    return patched(node, label_report(node, WANTED).desired)


def test_labels_are_written_with_the_note_that_they_are_ours_and_then_no_more() -> None:
    first = labelled({"kubernetes.io/os": "linux"})
    assert body(first, label_report(first, WANTED)) == {
        "metadata": {"labels": WANTED, "annotations": ours(**WANTED), "resourceVersion": "7"},
    }
    after = written(labelled({"kubernetes.io/os": "linux"}))
    assert is_met(after, label_report(after, WANTED).desired)
    assert labels_of_ours(after) == [COUNT, PRODUCT]


def test_what_differs_is_written_and_what_is_no_longer_wanted_goes() -> None:
    node = written(labelled({}))
    assert body(node, label_report(node, {COUNT: "4"}))["metadata"] == {
        "labels": {COUNT: "4", PRODUCT: None},
        "annotations": ours(**{COUNT: "4"}),
        "resourceVersion": "7",
    }


def test_switched_off_ours_go_and_those_of_others_stay() -> None:
    node = patched(written(labelled({})), {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
    after = patched(node, label_report(node, {}).desired)
    assert (after.metadata.labels, after.metadata.annotations) == ({"nvidia.com/gpu.present": "true"}, {})


def test_one_label_of_another_writer_leaves_all_to_it() -> None:
    assert label_report(labelled({COUNT: "8"}), WANTED) == label_report(labelled({COUNT: "8"}), WANTED)
    report = label_report(labelled({COUNT: "8"}), WANTED)
    assert (body(labelled({COUNT: "8"}), report), report.others) == (None, (COUNT,))
    assert label_report(labelled({STAMP: "1724632719"}), WANTED).others == (STAMP,)


def test_a_writer_that_comes_later_is_left_alone_and_ours_are_taken_away() -> None:
    for change in (
        {"labels": {COUNT: "9"}},
        {"labels": {STAMP: "1"}},
        {"annotations": {CLAIMS: f"cpu-cpuid.AVX,{COUNT},{PRODUCT}"}},
        {"annotations": {f"gpu.{CLAIMS}": COUNT}},
    ):
        node = patched(written(labelled({})), {"metadata": change})
        report = label_report(node, WANTED)
        after = patched(node, report.desired)
        assert report.others
        assert NODE_LABELS not in after.metadata.annotations
        assert {name: after.metadata.labels[name] for name in report.others} == {
            name: node.metadata.labels[name] for name in report.others
        }
        assert is_met(after, label_report(after, WANTED).desired)


def test_when_the_other_writer_has_gone_they_are_written_again() -> None:
    node = patched(labelled({STAMP: "1"}), {"metadata": {"labels": {STAMP: None}}})
    assert not is_met(node, label_report(node, WANTED).desired)


def test_a_note_that_cannot_be_read_or_names_other_labels_takes_nothing_away() -> None:
    for note in ("{", "[]", '{"kubernetes.io/os":"linux","nvidia.com/gpu.present":"true"}'):
        labels = {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}
        node = labelled(labels, {NODE_LABELS: note})
        assert labels_of_ours(node) == []
        assert patched(node, label_report(node, {}).desired).metadata.labels == labels


@given(
    st.dictionaries(names, values),
    st.dictionaries(names, values),
    st.dictionaries(names.filter(lambda name: name in (COUNT, PRODUCT, "nvidia.com/gpu.family")), values),
    st.lists(names).map(",".join),
)
def test_one_patch_is_enough_and_no_label_of_others_changes(
    labels: dict[str, str], note: dict[str, str], wanted: dict[str, str], claims: str
) -> None:
    node = labelled(labels, {**ours(**note), CLAIMS: claims})
    report = label_report(node, wanted)
    after = patched(node, report.desired)
    assert is_met(after, label_report(after, wanted).desired)
    strangers = {name: value for name, value in labels.items() if name not in labels_of_ours(node)}
    assert {name: after.metadata.labels.get(name) for name in strangers} == strangers
    if not report.others:
        assert wanted.items() <= after.metadata.labels.items()
