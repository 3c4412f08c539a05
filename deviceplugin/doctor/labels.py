"""Checks whether the Node's labels describe its GPUs, and which program writes them."""

from collections.abc import Mapping

from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning
from deviceplugin.node.desired import is_met
from deviceplugin.node.labels import label_report, labels_of_ours
from deviceplugin.sentences import enumerated
from proto.kubernetes.objects import Node

LABELS = "Feature labels"


def judge_labels(node: Node, wanted: Mapping[str, str], *, daemon_serves: bool) -> Finding:
    """Checks the labels. `wanted` are those that the daemon would write."""
    due = label_report(node, wanted)
    if due.others:
        return warning(
            LABELS,
            f"Another program writes them: {enumerated(due.others)}.",
            "Set feature_labels to false (--feature-labels false), or remove these labels and the program that "
            "writes them, such as GPU feature discovery.",
        )
    if is_met(node, due.desired):
        return ok(LABELS, f"The Node has {len(wanted)} labels of its GPUs.")
    if not daemon_serves:
        return skipped(LABELS, "The daemon does not run, so they are not written.")
    wrong = [name for name, value in wanted.items() if node.metadata.labels.get(name) != value]
    return problem(
        LABELS,
        f"{len(wrong)} of {len(wanted)} are missing or have other values: {enumerated(wrong)}.",
        "Run this with the daemon's own settings (--mig-strategy, --device-split-count, --config). If they are the "
        "same, read the daemon's log: the policy topogpu-device-plugin-nodes must let it write labels.",
    )


def judge_without_labels(node: Node) -> Finding:
    left = labels_of_ours(node)
    if left:
        return problem(
            LABELS,
            f"They are off, and the Node still has {enumerated(left)}.",
            "Read the daemon's log: it must be allowed to patch nodes, by its ClusterRole and by the policies.",
        )
    return ok(LABELS, "They are off.")
