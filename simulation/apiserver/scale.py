"""The subresource `scale`: the number of an object's replicas (pure).

Source: autoscaling/v1 Scale of the Kubernetes API reference.
"""

from simulation.apiserver.errors import JsonObject, invalid
from simulation.apiserver.kinds import ServedKind

_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def of(item: JsonObject) -> JsonObject:
    """Returns the Scale of an object."""
    metadata = {key: item["metadata"][key] for key in _METADATA if key in item["metadata"]}
    selected = (item["spec"].get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(selected.items()))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": item["spec"].get("replicas", 1)},
        "status": {"replicas": (item.get("status") or {}).get("replicas", 0), "selector": selector},
    }


def replicas(kind: ServedKind, body: JsonObject) -> int:
    """Returns the replicas that a Scale wants. Raises ApiRefusal."""
    wanted = (body.get("spec") or {}).get("replicas", 0)
    if not isinstance(wanted, int) or wanted < 0:
        name = str((body.get("metadata") or {}).get("name", ""))
        raise invalid(kind, name, f"spec.replicas: Invalid value: {wanted}: must be greater than or equal to 0")
    return wanted
