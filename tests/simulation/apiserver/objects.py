"""Pods and nodes for the tests of the embedded API server."""

from typing import Any


def pod(
    name: str,
    *,
    namespace: str = "default",
    gpus: int = 0,
    node: str = "",
    labels: dict[str, str] | None = None,
    scheduler: str = "topogpu-scheduler",
    priority: str = "",
) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    spec: dict[str, Any] = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits} if limits else {}}],
    }
    if node:
        spec["nodeName"] = node
    if priority:
        spec["priorityClassName"] = priority
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def node(name: str, *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": conditions}}
