"""Pods as the API server shows them to the webhook, spelled once."""

import base64
import json
from copy import deepcopy
from typing import Any

import msgspec

from proto.admission import AdmissionVerdict, Json, PodReview
from proto.kubernetes.objects import Pod
from proto.kubernetes.wire import decode_object
from scheduler_ext.admission.admit import admit
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.cluster.snapshot import Quota
from simulation.apiserver.patches import json_patch


def container(name: str = "main", *, env: Json | None = None, privileged: bool = False, **amounts: Any) -> Json:
    """`amounts` are limits by the last part of their name: gpu, gpumem, gpumem_percentage, gpucores, priority."""
    made: Json = {"name": name, "image": "work", "resources": {}}
    if amounts:
        made["resources"] = {"limits": {f"nvidia.com/{k.replace('_', '-')}": v for k, v in amounts.items()}}
    if env:
        made["env"] = [{"name": k, "value": v} for k, v in env.items()]
    if privileged:
        made["securityContext"] = {"privileged": True}
    return made


def pod(*containers: Json, init: tuple[Json, ...] = (), annotations: Json | None = None, **spec: Any) -> Json:
    made: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"schedulerName": "default-scheduler", "containers": list(containers), **spec},
    }
    if init:
        made["spec"]["initContainers"] = list(init)
    if annotations:
        made["metadata"]["annotations"] = annotations
    return made


def review(pod_json: Json, operation: str = "CREATE") -> PodReview:
    read = decode_object(Pod, json.dumps(pod_json).encode())
    return PodReview(operation=operation, namespace="ns", object=deepcopy(pod_json), pod=read)


def judged(pod_json: Json, quota: Quota | None = None, **settings: Any) -> AdmissionVerdict:
    return admit(review(pod_json), AdmissionSettings(**settings), quota)


def patched(pod_json: Json, verdict: AdmissionVerdict) -> Json:
    operations = json.loads(msgspec.json.encode(verdict.patch))
    changed: Json = json_patch(pod_json, operations)
    return changed


def envelope(pod_json: Json, **request: Any) -> bytes:
    fields = {"uid": "u-1", "operation": "CREATE", "namespace": "ns", "object": pod_json, **request}
    review_json = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields}
    return json.dumps(review_json).encode()


def opened(answer: bytes) -> Json:
    """The answer with its patch in the clear."""
    read: Json = json.loads(answer)
    if "patch" in read["response"]:
        read["response"]["patch"] = json.loads(base64.b64decode(read["response"]["patch"]))
    return read
