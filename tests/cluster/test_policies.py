"""The ValidatingAdmissionPolicies as shipped, on a real API server: whom they stop, and whom they let through."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from deviceplugin.settings import TotalNames
from proto.annotations import keys
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.shipped import (
    DAEMON,
    MERGE_PATCH,
    NAMESPACE,
    POLICIES,
    RBAC,
    SCHEDULER,
    Caller,
    apply,
    documents,
    identity,
    object_path,
    remove,
    told,
)
from tests.polling import until
from tests.variables import CHOOSES, HARMLESS, TABLE, UNANSWERED

pytestmark = pytest.mark.cluster

OURS = "is written by the scheduler and the node daemon of TopoGPU only"
FORGED = "GPU-another,NVIDIA,40000,100:;"
OWN_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ALL_GPUS = {"NVIDIA_VISIBLE_DEVICES": "all"}
CHOICE = "an environment variable chooses GPUs or other devices past the scheduler"
LIFTED = "an environment variable of this pod can lift the limits of a shared GPU"
NODE_KEYS = (
    keys.NODE_REGISTER,
    keys.NODE_SCORE,
    keys.NODE_HANDSHAKE,
    keys.NODE_LOCK,
    keys.NODE_ALLOCATION,
    keys.NODE_LIMITS,
    keys.NODE_SIMULATED,
    keys.NODE_LOCK_UID,
    keys.NODE_UNDECIDED,
    keys.NODE_OUTLIVING,
    keys.NODE_LABELS,
    keys.NODE_UNHEALTHY,
)
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

LABELS = "of a Node's labels a node daemon writes those that tell of its GPUs, where its features have gpu-labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`own` and `other` are nodes; `daemon` runs on the first. `stranger` has every right that RBAC can give."""

    peer: Peer
    namespace: str
    own: str
    other: str
    daemon: Caller
    scheduler: Caller
    stranger: Caller

    @property
    def daemon_user(self) -> str:
        return f"system:serviceaccount:{NAMESPACE}:{DAEMON}"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def pod(
        self, name: str, node: str = "", annotations: dict[str, str] | None = None, scheduler: str = "another"
    ) -> str:
        """The path of a new pod, made by the administrator."""
        bound: dict[str, Any] = {"nodeName": node} if node else {}
        await self.peer.create(self.pods, pod_json(name, annotations, schedulerName=scheduler, **bound))
        return f"{self.pods}/{name}"


def pod_json(
    name: str, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    metadata = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "example.com/work:1"}], **spec}}


def refused_by(policy: str, answer: tuple[int, str]) -> str:
    """The policy's own words."""
    status, words = answer
    name = f"topogpu-{policy}"
    own = f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: "
    assert (status, own in words) == (422, True), answer
    return words.partition(own)[2]


@pytest.fixture
async def peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as server:
        if await server.minor() < 30:
            pytest.skip("ValidatingAdmissionPolicy v1 begins with Kubernetes 1.30")
        yield server


@pytest.fixture
async def site(peer: Peer) -> AsyncIterator[Site]:
    suffix = uuid.uuid4().hex[:8]
    own, other = f"own-{suffix}", f"other-{suffix}"
    await peer.create("/api/v1/nodes", {"metadata": {"name": other}})
    stranger = Caller(peer, user="stranger", groups=("system:authenticated",))
    found = Site(
        peer=peer,
        namespace=await peer.namespace(f"test-{suffix}"),
        own=own,
        other=other,
        daemon=await identity(peer, DAEMON, own),
        scheduler=await identity(peer, SCHEDULER, own),
        stranger=stranger,
    )
    shipped = documents(*RBAC, *POLICIES)
    await apply(peer, [*shipped, *everything_for("stranger")])
    await _until(found, refused=True)
    yield found
    await remove(peer, documents(*POLICIES))
    await _until(found, refused=False)
    await remove(peer, [*documents(*RBAC), *everything_for("stranger")])
    for path in (f"{found.pods}?gracePeriodSeconds=0", f"{OWN_PODS}?gracePeriodSeconds=0", "/api/v1/nodes"):
        await peer.send("DELETE", path)


def everything_for(user: str) -> list[dict[str, Any]]:
    version, name = "rbac.authorization.k8s.io/v1", {"name": f"everything-for-{user}"}
    rules = [{"apiGroups": [""], "resources": ["*"], "verbs": ["*"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name["name"]}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    return [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": name, "rules": rules},
        {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": name, "roleRef": role, "subjects": subjects},
    ]


async def _until(site: Site, *, refused: bool) -> None:
    """The API server reads its policies and its roles a moment after they were written."""
    pods, nodes = f"{site.pods}?dryRun=All", f"/api/v1/nodes/{site.other}?dryRun=All"
    decided = {"name": "probe", "annotations": {keys.BIND_TIME: "1"}}
    binding_path = f"{site.pods}/probe/binding?dryRun=All"

    async def told_alike() -> bool:
        lifted = pod_json("probe", containers=[container(env=ALL_GPUS)])
        answers = (
            await site.stranger.send("POST", pods, pod_json("probe", {keys.BIND_TIME: "1"})),
            await site.stranger.send("POST", pods, lifted),
            await site.stranger.send("POST", binding_path, {"metadata": decided, "target": {"name": site.own}}),
            await site.daemon.send("PATCH", nodes, {"metadata": {"annotations": {keys.NODE_SCORE: "[]"}}}, MERGE_PATCH),
            await site.scheduler.send("PATCH", nodes, {"spec": {"unschedulable": True}}, MERGE_PATCH),
        )
        return {answer[0] == 422 for answer in answers} == {refused}

    await until(told_alike)


def container(name: str = "main", env: dict[str, str] | None = None, **amounts: str) -> dict[str, Any]:
    limits = {f"nvidia.com/{key}": amount for key, amount in amounts.items()}
    written = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return {"name": name, "image": "example.com/work:1", "resources": {"limits": limits}, "env": written}


async def test_nobody_else_creates_or_changes_a_pod_with_what_the_scheduler_writes(site: Site) -> None:
    for key in (*keys.POD_WRITTEN_KEYS, "hami.io/vgpu-devices-of-somebody"):
        answer = told(await site.stranger.send("POST", site.pods, pod_json("p", {key: FORGED})))
        assert refused_by("pod-annotations", answer) == f"annotation {key} {OURS}"
    path = await site.pod("victim", site.own, {keys.DEVICES_ALLOCATED: "GPU-0,NVIDIA,1000,10:;"})
    for subresource in ("", "/status"):
        answer = await site.stranger.annotate(path + subresource, {keys.DEVICES_ALLOCATED: FORGED})
        assert refused_by("pod-annotations", answer) == f"annotation {keys.DEVICES_ALLOCATED} {OURS}"
        answer = await site.stranger.annotate(path + subresource, {keys.DEVICES_ALLOCATED: None})
        assert refused_by("pod-annotations", answer) == (
            f"annotation {keys.DEVICES_ALLOCATED} must stay while the pod exists"
        )
    labelled = {"metadata": {"labels": {keys.POD_NODE: site.other}}}
    answer = told(await site.stranger.send("PATCH", path, labelled, MERGE_PATCH))
    assert refused_by("pod-annotations", answer) == f"label {keys.POD_NODE} is written by the scheduler of TopoGPU only"
    assert await site.stranger.annotate(path, {"example.com/mine": "1", keys.GPU_POLICY: "spread"}) == (200, "")


async def test_a_controller_whose_template_holds_a_decision_creates_no_pod(site: Site) -> None:
    controller = Caller(site.peer, user="system:serviceaccount:kube-system:replicaset-controller")
    await apply(site.peer, everything_for(controller.user))
    answer = told(await controller.send("POST", site.pods, pod_json("p", {keys.DEVICES_ALLOCATED: FORGED})))
    assert refused_by("pod-annotations", answer) == f"annotation {keys.DEVICES_ALLOCATED} {OURS}"
    assert (await controller.send("POST", site.pods, pod_json("p")))[0] == 201
    await remove(site.peer, everything_for(controller.user))


async def test_nobody_else_writes_what_a_node_registers_a_kubelet_neither(site: Site) -> None:
    kubelet = Caller(site.peer, user=f"system:node:{site.own}", groups=("system:nodes",))
    await apply(site.peer, everything_for(kubelet.user))
    for caller in (site.stranger, kubelet):
        for path in (f"/api/v1/nodes/{site.own}", f"/api/v1/nodes/{site.own}/status"):
            for key in NODE_KEYS:
                answer = await caller.annotate(path, {key: "[]"})
                assert refused_by("node-annotations", answer) == f"annotation {key} {OURS}"
            assert await caller.annotate(path, {keys.DEVICE_CORDON: "GPU-0", "example.com/mine": "1"}) == (200, "")
        new = {"metadata": {"name": f"new-{site.own}", "annotations": {keys.NODE_REGISTER: "[]"}}}
        answer = told(await caller.send("POST", "/api/v1/nodes", new))
        assert refused_by("node-annotations", answer) == f"annotation {keys.NODE_REGISTER} {OURS}"
    await remove(site.peer, everything_for(kubelet.user))


async def test_the_api_server_says_on_which_node_a_daemon_runs(site: Site) -> None:
    review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
    _, answer = await site.daemon.send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer["status"]["userInfo"]["extra"]["authentication.kubernetes.io/node-name"] == [site.own]


async def test_a_daemon_writes_its_own_node_and_there_only_what_it_has_to_say(site: Site) -> None:
    own, other = f"/api/v1/nodes/{site.own}", f"/api/v1/nodes/{site.other}"
    said = dict.fromkeys(set(NODE_KEYS) - {keys.NODE_LOCK, keys.NODE_LOCK_UID}, "[]")
    assert await site.daemon.annotate(own, said) == (200, "")
    assert await site.daemon.annotate(own, dict.fromkeys(said)) == (200, "")
    answer = await site.daemon.annotate(other, said)
    assert refused_by("device-plugin-nodes", answer) == "a node daemon writes its own Node only"
    for key in (keys.NODE_LOCK, keys.NODE_LOCK_UID, keys.DEVICE_CORDON, "example.com/theirs"):
        answer = await site.daemon.annotate(own, {key: "x"})
        assert refused_by("device-plugin-nodes", answer) == (
            "a node daemon writes what it registers and takes away the node lock, nothing else"
        )
    for change in (
        {"spec": {"unschedulable": True}},
        {"metadata": {"finalizers": ["example.com/held"]}},
    ):
        answer = told(await site.daemon.send("PATCH", own, change, MERGE_PATCH))
        assert (
            refused_by("device-plugin-nodes", answer)
            == "a node daemon changes annotations, feature labels and its own taint only"
        )


async def test_of_taints_and_conditions_a_daemon_writes_its_own_alone(site: Site) -> None:
    path = f"/api/v1/nodes/{site.own}"
    theirs = {"key": "example.com/x", "effect": "NoSchedule"}
    ours = {"key": keys.NODE_TAINT, "effect": "NoSchedule"}

    async def taint(*taints: dict[str, str]) -> tuple[int, str]:
        return told(await site.daemon.send("PATCH", path, {"spec": {"taints": list(taints)}}, MERGE_PATCH))

    assert (await site.peer.send("PATCH", path, {"spec": {"taints": [theirs]}}, MERGE_PATCH))[0] == 200
    assert await taint(theirs, ours) == (200, "")
    for taints in ([ours], [theirs | {"effect": "NoExecute"}, ours], [theirs, ours | {"effect": "NoExecute"}]):
        assert refused_by("device-plugin-nodes", await taint(*taints)) == (
            "of taints a node daemon writes topogpu.io/gpu-unhealthy:NoSchedule only"
        )
    assert await taint(theirs) == (200, "")

    async def tell(kind: str, status: str, caller: Caller) -> tuple[int, str]:
        body = {"status": {"conditions": [{"type": kind, "status": status}]}}
        return told(await caller.send("PATCH", f"{path}/status", body, STRATEGIC_PATCH))

    assert await tell("Ready", "True", Caller(site.peer)) == (200, "")
    for status in ("True", "False"):
        assert await tell(keys.NODE_CONDITION, status, site.daemon) == (200, "")
    assert refused_by("device-plugin-nodes", await tell("Ready", "False", site.daemon)) == (
        "of a Node's status a node daemon changes capacity, allocatable and its own condition only"
    )
    gone = {"status": {"conditions": [{"type": keys.NODE_CONDITION, "$patch": "delete"}]}}
    assert (await site.daemon.send("PATCH", f"{path}/status", gone, STRATEGIC_PATCH))[0] == 200
    _, node = await site.peer.send("GET", path)
    assert {one["type"]: one["status"] for one in node["status"]["conditions"]} == {"Ready": "True"}


async def test_a_daemon_evicts_pods_with_gpus_of_its_own_node_alone(site: Site) -> None:
    decided = {keys.DEVICES_ALLOCATED: FORGED}
    here, there = await site.pod("here", site.own, decided), await site.pod("there", site.other, decided)
    plain = await site.pod("plain", site.own)
    await apply(site.peer, everything_for(site.daemon_user))

    async def evict(path: str) -> tuple[int, str]:
        name = path.rpartition("/")[2]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": site.namespace}}
        return told(await site.daemon.send("POST", f"{path}/eviction", body))

    async def refuses() -> bool:
        return (await evict(there))[0] == 422

    await until(refuses)
    assert refused_by("device-plugin-evictions", await evict(there)) == "a node daemon evicts pods of its own node only"
    assert refused_by("device-plugin-evictions", await evict(plain)) == "a node daemon evicts pods with GPUs only"
    assert (await evict(here))[0] == 201
    await remove(site.peer, everything_for(site.daemon_user))


async def test_of_a_nodes_status_a_daemon_writes_the_totals_of_its_gpus_and_nothing_else(site: Site) -> None:
    async def patched(status: dict[str, Any], node: str = "") -> tuple[int, str]:
        path = f"/api/v1/nodes/{node or site.own}/status"
        return told(await site.daemon.send("PATCH", path, {"status": status}, MERGE_PATCH))

    kubelets = {
        "capacity": {"cpu": "8", "nvidia.com/gpu": "10"},
        "addresses": [{"type": "InternalIP", "address": "::1"}],
    }
    path = f"/api/v1/nodes/{site.own}/status"
    assert (await site.peer.send("PATCH", path, {"status": kubelets}, MERGE_PATCH))[0] == 200
    totals = dict.fromkeys((*TotalNames(), *keys.SUMS), "400")
    for written in (totals, totals | {keys.RESOURCE_MEMORY: "500"}, dict.fromkeys(totals)):
        assert await patched({"capacity": written, "allocatable": written}) == (200, "")
    answer = await patched({"capacity": totals}, site.other)
    assert refused_by("device-plugin-nodes", answer) == "a node daemon writes its own Node only"
    for amounts in ({"nvidia.com/gpu": "99"}, {"cpu": None}, {"cpu": "9"}, {"example.com/nic": "1"}):
        for part in ("capacity", "allocatable"):
            if part == "capacity" or None not in amounts.values():
                answer = await patched({part: totals | amounts})
                assert refused_by("device-plugin-nodes", answer) == (
                    "of what a Node has a node daemon tells the totals of its GPUs, nothing else"
                )
    for status in (
        {"conditions": [{"type": "Ready", "status": "True"}]},
        {"addresses": None},
        {"addresses": [{"type": "InternalIP", "address": "::2"}]},
        {"nodeInfo": {"kubeletVersion": "v9"}},
    ):
        answer = await patched(status)
        assert refused_by("device-plugin-nodes", answer) == (
            "of a Node's status a node daemon changes capacity, allocatable and its own condition only"
        )
    answer = told(await site.daemon.send("PATCH", path, {"metadata": {"labels": {"gpu": "on"}}}, MERGE_PATCH))
    assert refused_by("device-plugin-nodes", answer) == LABELS


async def test_of_a_nodes_labels_a_daemon_writes_those_that_tell_of_its_gpus(site: Site) -> None:
    async def patched(**labels: str | None) -> tuple[int, str]:
        body = {"metadata": {"labels": labels}}
        return told(await site.daemon.send("PATCH", f"/api/v1/nodes/{site.own}", body, MERGE_PATCH))

    feature = {"nvidia.com/gpu.product": "A100", "nvidia.com/mig-1g.5gb.engines.copy": "1"}
    others = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.device-plugin": "true", "example.com/a": "b"}
    path = f"/api/v1/nodes/{site.own}"
    body = {"metadata": {"labels": {**feature, **others}}}
    assert (await site.peer.send("PATCH", path, body, MERGE_PATCH))[0] == 200
    for name in others:
        assert refused_by("device-plugin-nodes", await patched(**{name: "x"})) == LABELS
        assert refused_by("device-plugin-nodes", await patched(**{name: None})) == LABELS
    # As installed the daemon labels no Node; what it wrote under other settings it takes away.
    assert refused_by("device-plugin-nodes", await patched(**dict.fromkeys(feature, "x"))) == LABELS
    assert await patched(**dict.fromkeys(feature)) == (200, "")


async def test_the_scheduler_takes_the_node_lock_and_the_daemon_gives_it_back(site: Site) -> None:
    lock = {keys.NODE_LOCK: "2030-01-01T00:00:00Z,ns,p", keys.NODE_LOCK_UID: "u"}
    for node in (site.own, site.other):
        assert await site.scheduler.annotate(f"/api/v1/nodes/{node}", lock) == (200, "")
    assert await site.daemon.annotate(f"/api/v1/nodes/{site.own}", dict.fromkeys(lock)) == (200, "")
    answer = await site.daemon.annotate(f"/api/v1/nodes/{site.other}", dict.fromkeys(lock))
    assert refused_by("device-plugin-nodes", answer) == "a node daemon writes its own Node only"
    answer = await site.scheduler.annotate(f"/api/v1/nodes/{site.own}", {keys.NODE_REGISTER: "[]"})
    assert refused_by("scheduler-nodes", answer) == "of a Node the scheduler writes the lock, nothing else"
    answer = told(
        await site.scheduler.send("PATCH", f"/api/v1/nodes/{site.own}", {"spec": {"unschedulable": True}}, MERGE_PATCH)
    )
    assert refused_by("scheduler-nodes", answer) == "the scheduler changes annotations of Nodes only"


@pytest.mark.parametrize("group", ["system:masters", "kubeadm:cluster-admins"])
async def test_administrators_lift_a_lock_that_nobody_gives_back(site: Site, group: str) -> None:
    administrator = Caller(site.peer, user="somebody", groups=(group, "system:authenticated"))
    await apply(site.peer, everything_for(administrator.user))
    lock = {keys.NODE_LOCK: "2030-01-01T00:00:00Z,ns,p"}
    assert await site.scheduler.annotate(f"/api/v1/nodes/{site.own}", lock) == (200, "")
    assert await administrator.annotate(f"/api/v1/nodes/{site.own}", dict.fromkeys(lock)) == (200, "")
    await remove(site.peer, everything_for(administrator.user))


async def test_a_daemon_tells_of_the_pods_on_its_own_node_what_became_of_their_gpus(site: Site) -> None:
    decided = {keys.DEVICES_ALLOCATED: FORGED, keys.DEVICES_TO_ALLOCATE: FORGED, keys.BIND_PHASE: "allocating"}
    here, there = await site.pod("here", site.own, decided), await site.pod("there", site.other, decided)
    nowhere = await site.pod("nowhere", "", decided)
    served = {keys.BIND_PHASE: "success", keys.DEVICES_TO_ALLOCATE: ":;"}
    assert await site.daemon.annotate(here, served) == (200, "")
    for path in (there, nowhere):
        answer = await site.daemon.annotate(path, served)
        assert refused_by("device-plugin-pods", answer) == "a node daemon writes the pods on its own node only"
    for key in (keys.DEVICES_ALLOCATED, keys.POD_NODE, keys.REQUEUE, "example.com/theirs"):
        answer = await site.daemon.annotate(here, {key: "x"})
        assert (
            refused_by("device-plugin-pods", answer) == "a node daemon tells what became of a pod's GPUs, nothing else"
        )
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/evil:1"}]
    answer = told(await site.daemon.send("PATCH", here, image, "application/json-patch+json"))
    assert refused_by("device-plugin-pods", answer) == "a node daemon changes annotations only"


async def test_only_of_a_pod_with_a_wish_for_other_memory_the_scheduler_changes_what_it_holds(site: Site) -> None:
    less, answer = {keys.DEVICES_ALLOCATED: "GPU-1,NVIDIA,1,1:;"}, {keys.MEMORY_RESIZE: "{}"}
    path = await site.pod("p", site.own, {keys.DEVICES_ALLOCATED: FORGED})
    for change in (less, answer):
        refusal = await site.scheduler.annotate(path, change)
        assert refused_by("scheduler-pods", refusal).startswith(
            "beside its Binding the scheduler writes the annotation"
        )
    assert await site.stranger.annotate(path, {keys.MEMORY_WISH: "1"}) == (200, "")
    assert await site.daemon.annotate(path, answer) == (200, "")
    assert await site.daemon.annotate(path, dict.fromkeys(answer)) == (200, "")
    assert await site.scheduler.annotate(path, less | answer) == (200, "")
    refusal = await site.stranger.annotate(path, {keys.MEMORY_RESIZE: "{ }"})
    assert refused_by("pod-annotations", refusal).startswith(f"annotation {keys.MEMORY_RESIZE} is written by")


async def test_the_scheduler_requeues_pods_and_changes_nothing_else_of_them(site: Site) -> None:
    path = await site.pod("p", "", {keys.DEVICES_ALLOCATED: FORGED})
    assert await site.scheduler.annotate(path, {keys.REQUEUE: "now", keys.SET_ASIDE: "{}"}) == (200, "")
    answer = await site.scheduler.annotate(path, {keys.DEVICES_ALLOCATED: "GPU-1,NVIDIA,1,1:;"})
    assert refused_by("scheduler-pods", answer).startswith("beside its Binding the scheduler writes the annotation")
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/evil:1"}]
    answer = told(await site.scheduler.send("PATCH", path, image, "application/json-patch+json"))
    assert refused_by("scheduler-pods", answer) == "the scheduler changes no pod's spec"
    role = {"metadata": {"labels": {keys.SCHEDULER_ROLE: "leader"}}}
    answer = told(await site.scheduler.send("PATCH", path, role, MERGE_PATCH))
    assert refused_by("scheduler-pods", answer) == "the scheduler labels its own pods with their roles, nothing else"
    own = f"{OWN_PODS}/{SCHEDULER}-{site.own}"
    assert told(await site.scheduler.send("PATCH", own, role, MERGE_PATCH)) == (200, "")


async def test_a_pods_status_is_all_that_the_scheduler_writes_through_it(site: Site) -> None:
    """Kubernetes' own role of a kube-scheduler lets it patch `pods/status`, which takes labels and annotations too."""
    path = f"{await site.pod('p')}/status"
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"status": {"conditions": [waits], "nominatedNodeName": site.own}}
    assert told(await site.scheduler.send("PATCH", path, status, MERGE_PATCH)) == (200, "")
    for metadata, words in (
        ({"labels": {"app": "another"}}, "the scheduler labels its own pods with their roles, nothing else"),
        ({"annotations": {keys.DEVICES_ALLOCATED: FORGED}}, "beside its Binding the scheduler writes the annotation"),
        ({"finalizers": ["example.com/held"]}, "the scheduler changes no pod's spec"),
    ):
        answer = told(await site.scheduler.send("PATCH", path, {"metadata": metadata}, MERGE_PATCH))
        assert refused_by("scheduler-pods", answer).startswith(words)


async def test_of_the_webhooks_registration_the_scheduler_writes_the_ca_bundle_alone(site: Site) -> None:
    [registration] = documents("MutatingWebhookConfiguration")
    harmless = {"matchExpressions": [{"key": "nobody-has-this", "operator": "Exists"}]}
    registration["webhooks"] = [{**each, "objectSelector": harmless} for each in registration["webhooks"]]
    await apply(site.peer, [registration])
    path, first = object_path(registration), "/webhooks/0"

    async def change(key: str, value: object) -> tuple[int, str]:
        patch = [{"op": "add", "path": f"{first}/{key}", "value": value}]
        return told(await site.scheduler.send("PATCH", path, patch, "application/json-patch+json"))

    assert await change("clientConfig/caBundle", "MTIz") == (200, "")
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    for key, value in {
        "clientConfig": {"url": "https://example.com/"},
        "clientConfig/service/name": "another",
        "rules": [everything],
        "matchConditions": [{"name": "always", "expression": "true"}],
        "namespaceSelector": {},
        "objectSelector": {},
        "failurePolicy": "Ignore",
        "timeoutSeconds": 30,
        "matchPolicy": "Exact",
        "reinvocationPolicy": "Never",
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1beta1"],
        "name": "another.topogpu.io",
    }.items():
        assert refused_by("scheduler-webhook", await change(key, value)) == (
            "of the webhook's registration the scheduler writes the caBundle, nothing else"
        )
    answer = await site.scheduler.annotate(path, {"cert-manager.io/inject-ca-from": "another/one"})
    assert refused_by("scheduler-webhook", answer)
    await remove(site.peer, [registration])


async def test_a_token_that_names_no_node_writes_nothing(site: Site) -> None:
    """Such as one that was asked for by hand, or the secret tokens of old."""
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{DAEMON}/token"
    answer = await site.peer.create(account, {"spec": {"expirationSeconds": 3600}})
    unbound = Caller(site.peer, token=answer["status"]["token"])
    path = await site.pod("p", site.own)
    for policy, refusal in (
        ("device-plugin-nodes", await unbound.annotate(f"/api/v1/nodes/{site.own}", {keys.NODE_SCORE: "[]"})),
        ("device-plugin-pods", await unbound.annotate(path, {keys.BIND_PHASE: "success"})),
    ):
        assert refused_by(policy, refusal).startswith("the node daemon's token names no node: ")


async def test_only_our_scheduler_binds_the_pods_that_ask_for_it(site: Site) -> None:
    await site.pod("ours", scheduler="topogpu-scheduler")
    await site.pod("theirs")
    alone = "pods of the scheduler topogpu-scheduler are bound by it alone"

    async def seen() -> bool:
        status, words = told(await site.stranger.send("POST", f"{site.pods}/ours/binding", binding("ours", site.own)))
        return status == 422 and alone in words

    await site.peer.create(site.pods, pod_json("probe", schedulerName="topogpu-scheduler"))
    await until(seen)
    legacy = f"/api/v1/namespaces/{site.namespace}/bindings"
    for path in (f"{site.pods}/ours/binding", legacy):
        answer = told(await site.stranger.send("POST", path, binding("ours", site.own)))
        assert refused_by("bindings", answer) == alone
    forged = binding("theirs", site.own, {keys.DEVICES_ALLOCATED: FORGED})
    answer = told(await site.stranger.send("POST", f"{site.pods}/theirs/binding", forged))
    assert (
        refused_by("binding-annotations", answer)
        == "the annotations of a decision are brought by TopoGPU's scheduler only"
    )
    assert (await site.stranger.send("POST", f"{site.pods}/theirs/binding", binding("theirs", site.own)))[0] == 201
    decided = binding("ours", site.own, {keys.DEVICES_ALLOCATED: FORGED})
    assert (await site.scheduler.send("POST", f"{site.pods}/ours/binding", decided))[0] == 201
    _, pod = await site.peer.send("GET", f"{site.pods}/ours")
    assert pod["metadata"]["annotations"] == {keys.DEVICES_ALLOCATED: FORGED}


def binding(name: str, node: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations or {}}, "target": {"kind": "Node", "name": node}}


@pytest.mark.parametrize("place", ["containers", "initContainers"])
async def test_no_pod_reaches_gpus_past_the_scheduler_by_its_environment(site: Site, place: str) -> None:
    dry, ignored = f"{site.pods}?dryRun=All", {keys.WEBHOOK: keys.WEBHOOK_IGNORE}
    with_gpus: dict[str, Any] = {"containers": [container(gpu="1")], "schedulerName": "topogpu-scheduler"}
    for verdict, env in (*TABLE, *UNANSWERED):
        judged = container("c", gpu="1") | {"env": list(env)}
        plain = container("c") | {"env": list(env)}
        answer = await site.stranger.send("POST", dry, pod_json("p", labels=ignored, **with_gpus | {place: [judged]}))
        if verdict == HARMLESS or (verdict, env) in UNANSWERED:
            assert answer[0] == 201, (env, answer)
        else:
            assert refused_by("bypass", told(answer)).startswith(CHOICE if verdict == CHOOSES else LIFTED), env
        without: dict[str, Any] = {"containers": [container()], place: [plain]}
        answer = await site.stranger.send("POST", dry, pod_json("p", **without))
        if verdict == CHOOSES:
            assert refused_by("bypass", told(answer)).startswith(CHOICE), env
        else:
            assert answer[0] == 201, (env, answer)


async def test_an_ephemeral_container_does_not_either_and_monitoring_may(site: Site) -> None:
    path = await site.pod("p", site.own)
    debugger = {"name": "d", "image": "i", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    change = {"spec": {"ephemeralContainers": [debugger]}}
    answer = told(
        await site.stranger.send(
            "PATCH", f"{path}/ephemeralcontainers", change, "application/strategic-merge-patch+json"
        )
    )
    assert refused_by("bypass", answer).startswith(CHOICE)
    monitoring = pod_json(f"monitoring-{site.own}", containers=[container(env=ALL_GPUS)])
    for namespace in ("kube-system", NAMESPACE):
        status, answered = await site.stranger.send(
            "POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", monitoring
        )
        assert status == 201, answered


async def test_no_pod_that_asks_for_gpus_is_kept_away_from_the_scheduler_by_a_label(site: Site) -> None:
    ignored = {keys.WEBHOOK: keys.WEBHOOK_IGNORE}
    gpus: dict[str, Any] = {"containers": [container(gpu="1")]}
    dry = f"{site.pods}?dryRun=All"
    answer = told(await site.stranger.send("POST", dry, pod_json("p", labels=ignored, **gpus)))
    assert refused_by("bypass", answer).startswith("GPUs are given out by scheduler topogpu-scheduler alone")
    for harmless in (
        pod_json("p", labels=ignored),
        pod_json("p", **gpus),
        pod_json("p", labels=ignored, schedulerName="topogpu-scheduler", **gpus),
    ):
        status, answered = await site.stranger.send("POST", dry, harmless)
        assert status == 201, answered
