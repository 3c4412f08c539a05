import json

import msgspec
import pytest

from proto.kubernetes.objects import (
    LEASES,
    NODES,
    PODS,
    Binding,
    Lease,
    LeaseSpec,
    Node,
    ObjectMeta,
    ObjectReference,
    Pod,
    ResourceQuota,
    version_number,
)
from proto.kubernetes.wire import NotJson, UnreadableObject, decode_object

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "managedFields": [{"manager": "kubectl"}]},
    "spec": {
        "nodeName": "n",
        "schedulerName": "topogpu-scheduler",
        "initContainers": [{"name": "side", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "main",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {}}}],
                "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}, "claims": []},
                "volumeMounts": [],
            }
        ],
    },
    "status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://x"}]},
}


def test_a_pod_is_read_by_the_fields_we_use() -> None:
    pod = decode_object(Pod, json.dumps(POD).encode())
    assert (pod.spec.node_name, pod.spec.scheduler_name, pod.status.phase) == ("n", "topogpu-scheduler", "Running")
    assert pod.spec.init_containers[0].restart_policy == "Always"
    main = pod.spec.containers[0]
    assert main.resources.limits == {"nvidia.com/gpu": 1, "memory": "1Gi"}
    assert [(env.name, env.value) for env in main.env] == [("A", "1"), ("B", "")]
    assert pod.status.container_statuses[0].container_id == "containerd://x"


def test_the_nulls_of_go_count_as_absent() -> None:
    body = b'{"metadata":{"creationTimestamp":null,"labels":null},"spec":{"containers":null},"status":{}}'
    assert decode_object(Pod, body) == Pod()
    assert decode_object(ResourceQuota, b'{"spec":{"hard":null}}') == ResourceQuota()


def test_errors_say_where() -> None:
    with pytest.raises(UnreadableObject, match=r"Expected `str`, got `int` - at `\$\.metadata\.name`"):
        decode_object(Node, b'{"metadata":{"name":1}}')
    for garbage in (b"", b"{", b"\xff", b'{"x":' + b"[" * 99999):
        with pytest.raises(NotJson):
            decode_object(Node, garbage)


def test_a_resource_version_that_is_no_number_of_etcds_is_0() -> None:
    assert [version_number(each) for each in ("17", "", "rv-17", "\u0663", "9" * 5000)] == [17, 0, 0, 0, 0]


def test_paths_follow_the_api() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "p", "binding") == "/api/v1/namespaces/ns/pods/p/binding"
    assert NODES.path("ignored", "n", "status") == "/api/v1/nodes/n/status"
    assert LEASES.path("ns", "l") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"


def test_what_we_write_is_camel_case_without_defaults() -> None:
    binding = Binding(metadata=ObjectMeta(name="p"), target=ObjectReference(api_version="v1", kind="Node", name="n"))
    assert json.loads(msgspec.json.encode(binding)) == {
        "metadata": {"name": "p"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
    }
    lease = Lease(metadata=ObjectMeta(name="l"), spec=LeaseSpec(holder_identity="us", lease_duration_seconds=15))
    assert json.loads(msgspec.json.encode(lease))["spec"] == {"holderIdentity": "us", "leaseDurationSeconds": 15}
