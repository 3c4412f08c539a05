"""The Node's labels about its GPUs, and which of those that it has are ours.

GPU feature discovery, or a person, may write labels of the same names. An annotation of the Node records what we wrote:
a label is ours while it has the recorded value and Node Feature Discovery does not claim it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from deviceplugin.node.desired import Desired
from proto.annotations.keys import NODE_LABELS
from proto.decoding import decoded
from proto.kubernetes.objects import Node, Notice

_CLAIMS = "nfd.node.kubernetes.io/feature-labels"
"""The annotation with the labels of Node Feature Discovery; a named instance writes its name and a dot before it."""
_TIMESTAMP = "nvidia.com/gfd.timestamp"
"""Only GPU feature discovery writes it."""
FEATURE_LABEL = (
    r"^nvidia[.]com/("
    r"cuda[.](driver|runtime)(-version)?[.](full|major|minor|rev|revision)|mig[.](capable|strategy)|mps[.]capable|"
    r"(gpu|mig-[0-9a-z.]+)[.](product|count|replicas|sharing-strategy|memory|family|compute[.](major|minor)|machine|"
    r"mode|clique|multiprocessors|slices[.](gi|ci)|engines[.](copy|decoder|encoder|jpeg|ofa)))$"
)
"""Names of labels that we write. The admission policy lets the daemon write these and no others."""
_MOST_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReport:
    """The labels that the Node should have of ours, and the names of those that other programs write."""

    desired: Desired
    others: tuple[str, ...] = ()


def label_report(node: Node, wanted: Mapping[str, str]) -> LabelReport:
    """Returns the changes after which the Node has exactly these labels of ours.

    If another program writes any of them, all are left to it and ours are removed: values of two sources would
    contradict each other, and two writers would overwrite each other forever.
    """
    ours = labels_of_ours(node)
    not_ours = (node.metadata.labels.keys() - set(ours)) | set(_claimed(node))
    others = tuple(sorted(not_ours & {*wanted, _TIMESTAMP}))
    due = {} if others else wanted
    written = msgspec.json.encode(dict(sorted(due.items()))).decode() if due else None
    labels = {**{name: None for name in ours if name not in due}, **due}
    return LabelReport(
        desired=Desired(labels=labels, annotations={NODE_LABELS: written}, of_this_version=True), others=others
    )


def labels_of_ours(node: Node) -> Sequence[str]:
    """Returns the names of the labels that we wrote and that nothing has changed."""
    claimed = set(_claimed(node))
    return [
        name
        for name, value in sorted(_written(node).items())
        if node.metadata.labels.get(name) == value and name not in claimed and re.match(FEATURE_LABEL, name)
    ]


def left_to_others(others: Iterable[str]) -> Notice:
    """Reports the labels that another writer has."""
    names = tuple(others)
    shown = ", ".join(names[:_MOST_TOLD]) + (f" and {len(names) - _MOST_TOLD} more" * (len(names) > _MOST_TOLD))
    message = (
        f"another program writes GPU feature labels: {shown}. Remove gpu-labels from the setting features, or remove "
        "these labels and the program that writes them, such as GPU feature discovery"
    )
    return Notice(reason="FeatureLabelsNotOurs", message=message, distinct=True)


def _written(node: Node) -> Mapping[str, str]:
    """Returns the labels that we wrote; none if the annotation cannot be read: then no label is taken for ours."""
    try:
        return decoded(node.metadata.annotations.get(NODE_LABELS, "{}"), dict[str, str])
    except msgspec.DecodeError:
        return {}


def _claimed(node: Node) -> Iterable[str]:
    for key, value in node.metadata.annotations.items():
        if key == _CLAIMS or key.endswith(f".{_CLAIMS}"):
            yield from value.split(",")
