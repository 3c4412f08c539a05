import pytest

from deviceplugin.doctor.cluster import DAEMON_RIGHTS, NoAnswer, Right, judge_api, judge_node, judge_rights
from deviceplugin.doctor.finding import Finding, FindingState
from proto.kubernetes.errors import ApiServerUnconfigured, ApiUnreachable, Forbidden, NotFound, Unauthorized

URL = "https://10.0.0.1:6443"


@pytest.mark.parametrize(
    ("refusal", "api", "node", "words"),
    [
        (None, "ok", "ok", "The cluster has node n."),
        (NotFound(404, "NotFound", "s"), "ok", "problem", "kubectl get nodes"),
        (Forbidden(403, "Forbidden", "s"), "ok", "problem", "resources: [nodes], verbs: [get]"),
        (Unauthorized(401, "Unauthorized", "s"), "problem", "skipped", "does not accept our credentials"),
        (ApiUnreachable("the API server x cannot be reached: refused"), "problem", "skipped", "cannot be reached"),
        (ApiServerUnconfigured("No API server is configured."), "problem", "skipped", "--kubeconfig"),
    ],
)
def test_no_answer_no_entry_and_no_node_are_told_apart(
    refusal: NoAnswer | None, api: str, node: str, words: str
) -> None:
    findings = judge_api(refusal, URL), judge_node(refusal, "n")
    assert [one.state.value for one in findings] == [api, node]
    assert words in " ".join(f"{one.explanation} {one.remedy}" for one in findings)


def test_a_node_without_a_name_cannot_be_looked_for() -> None:
    assert judge_node(None, "").state is FindingState.SKIPPED


EVENTS = Right("create", "events", "default")


def test_missing_rights_are_named_as_the_rules_that_grant_them() -> None:
    granted = dict.fromkeys(DAEMON_RIGHTS, True)
    denied = granted | {Right("patch", "pods"): False, Right("list", "pods"): False, EVENTS: False}
    assert judge_rights(granted).state is FindingState.OK
    assert judge_rights({}).state is FindingState.SKIPPED
    assert judge_rights(denied) == Finding(
        "RBAC",
        FindingState.PROBLEM,
        "Not allowed: list pods, patch pods and create events in namespace default.",
        "Add to the ClusterRole of the daemon's service account (or the user of the kubeconfig): "
        '{apiGroups: [""], resources: [pods], verbs: [list, patch]}; '
        "Add to the Role in namespace default of the daemon's service account (or the user of the kubeconfig): "
        '{apiGroups: [""], resources: [events], verbs: [create]}',
    )
