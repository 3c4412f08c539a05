"""What doctor says of GPUs that the Node calls unhealthy, and of the pods that have them."""

from dataclasses import replace

from deviceplugin.doctor.cluster import DAEMON_RIGHTS, Right, daemon_rights, judge_rights
from deviceplugin.doctor.driver import judge_unhealthy
from deviceplugin.doctor.finding import Finding, FindingState
from deviceplugin.settings import RemediationSettings, Remedy
from proto.annotations.keys import NODE_UNHEALTHY, RESOURCE_COUNT
from proto.kubernetes.objects import Node, Pod, Resources
from tests.builders import node
from tests.deviceplugin.gpus import PAIR, A, B, bound_pod, share

OFF, EVICT = RemediationSettings(), RemediationSettings(remedies=(Remedy.EVICT,))


def reported(*, healthy: bool = False, since: str = "") -> Node:
    annotations = {NODE_UNHEALTHY: since} if since else {}
    return node(devices=(PAIR[0], replace(PAIR[1], healthy=healthy)), annotations=annotations)


def holder(name: str, gpu: str) -> Pod:
    made = bound_pod(name, ((share(B if gpu == "b" else A),),), phase="Running")
    made.spec.containers[0].resources = Resources(limits={RESOURCE_COUNT: "1"})
    return made


def judged(node: Node | None, *pods: Pod, settings: RemediationSettings = OFF) -> Finding:
    return judge_unhealthy(node, pods, settings, RESOURCE_COUNT)


def test_a_node_with_healthy_gpus_is_fine() -> None:
    assert judged(reported(healthy=True), holder("p", "b")).state is FindingState.OK
    assert judged(None).state is FindingState.SKIPPED


def test_pods_on_an_unhealthy_gpu_are_named_with_what_becomes_of_them() -> None:
    found = judged(reported(since=f'{{"{B}":"2030-01-01T00:00:00Z"}}'), holder("p", "b"), holder("q", "a"))
    assert found.state is FindingState.WARNING
    assert found.explanation == f"{B} since 2030-01-01T00:00:00Z; pods on them: default/p."
    assert "delete these pods to have them placed again" in found.remedy
    evicting = judged(reported(), holder("p", "b"), settings=EVICT)
    assert evicting.explanation == f"{B}; pods on them: default/p."
    assert "the daemon evicts these pods in time" in evicting.remedy


def test_a_missing_gpu_is_named_by_its_place() -> None:
    found = judged(reported(healthy=True, since='{"GPU 2 at 0000:41:00.0":"2030-01-01T00:00:00Z"}'), holder("p", "b"))
    assert found.explanation == "GPU 2 at 0000:41:00.0 since 2030-01-01T00:00:00Z; no pod has one of them."


def test_an_annotation_that_cannot_be_read_is_a_problem() -> None:
    found = judged(reported(since="soon"))
    assert (found.state, found.explanation.startswith("topogpu.io/unhealthy-since: ")) == (FindingState.PROBLEM, True)


def test_a_daemon_that_evicts_needs_more_rights() -> None:
    assert daemon_rights(OFF) == DAEMON_RIGHTS
    assert daemon_rights(RemediationSettings(remedies=(Remedy.REPORT,))) == DAEMON_RIGHTS
    more = set(daemon_rights(EVICT)) - set(DAEMON_RIGHTS)
    lease = ("topogpu-system", "coordination.k8s.io", "topogpu-remediation")
    assert more == {
        Right("create", "pods/eviction"),
        Right("get", "leases", *lease),
        Right("patch", "leases", *lease),
    }
    found = judge_rights({Right("get", "leases", *lease): False})
    assert found.explanation == "Not allowed: get leases topogpu-remediation in namespace topogpu-system."
    assert found.remedy.endswith("{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get]}")
