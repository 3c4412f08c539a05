import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.labels import label_report, labels_of_ours
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


def patched(node: Node, body: Mapping[str, Any] | None) -> Node:
    """As a merge patch leaves it."""
    changes = (body or {}).get("metadata", {})

    def merged(part: str) -> dict[str, str]:
        after = {**getattr(node.metadata, part), **changes.get(part, {})}
        return {name: value for name, value in after.items() if value is not None}

    return labelled(merged("labels"), merged("annotations"))


def written(node: Node) -> Node:
    return patched(node, label_report(node, WANTED).body)


def test_labels_are_written_with_the_note_that_they_are_ours_and_then_no_more() -> None:
    first = label_report(labelled({"kubernetes.io/os": "linux"}), WANTED)
    assert first.body == {
        "metadata": {"labels": WANTED, "annotations": ours(**WANTED), "resourceVersion": "7"},
    }
    after = written(labelled({"kubernetes.io/os": "linux"}))
    assert label_report(after, WANTED).body is None
    assert labels_of_ours(after) == [COUNT, PRODUCT]


def test_what_differs_is_written_and_what_is_no_longer_wanted_goes() -> None:
    body = label_report(written(labelled({})), {COUNT: "4"}).body
    assert body is not None
    assert body["metadata"] == {
        "labels": {COUNT: "4", PRODUCT: None},
        "annotations": ours(**{COUNT: "4"}),
        "resourceVersion": "7",
    }


def test_switched_off_ours_go_and_those_of_others_stay() -> None:
    node = patched(written(labelled({})), {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
    after = patched(node, label_report(node, {}).body)
    assert (after.metadata.labels, after.metadata.annotations) == ({"nvidia.com/gpu.present": "true"}, {})


def test_one_label_of_another_writer_leaves_all_to_it() -> None:
    assert label_report(labelled({COUNT: "8"}), WANTED) == label_report(labelled({COUNT: "8"}), WANTED)
    report = label_report(labelled({COUNT: "8"}), WANTED)
    assert (report.body, report.others) == (None, (COUNT,))
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
        after = patched(node, report.body)
        assert report.others
        assert NODE_LABELS not in after.metadata.annotations
        assert {name: after.metadata.labels[name] for name in report.others} == {
            name: node.metadata.labels[name] for name in report.others
        }
        assert label_report(after, WANTED).body is None


def test_when_the_other_writer_has_gone_they_are_written_again() -> None:
    assert label_report(patched(labelled({STAMP: "1"}), {"metadata": {"labels": {STAMP: None}}}), WANTED).body


def test_a_note_that_cannot_be_read_or_names_other_labels_takes_nothing_away() -> None:
    for note in ("{", "[]", '{"kubernetes.io/os":"linux","nvidia.com/gpu.present":"true"}'):
        labels = {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}
        node = labelled(labels, {NODE_LABELS: note})
        assert labels_of_ours(node) == []
        assert patched(node, label_report(node, {}).body).metadata.labels == labels


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
    after = patched(node, report.body)
    assert label_report(after, wanted).body is None
    strangers = {name: value for name, value in labels.items() if name not in labels_of_ours(node)}
    assert {name: after.metadata.labels.get(name) for name in strangers} == strangers
    if not report.others:
        assert wanted.items() <= after.metadata.labels.items()
