"""Removes annotations and labels that only the scheduler and the daemon may write: a new pod has none of them."""

from proto.admission import Json
from proto.annotations import keys

LABELS = (keys.POD_NODE,)


def is_owned(annotation: str) -> bool:
    return annotation in keys.POD_WRITTEN_KEYS or annotation.startswith(keys.POD_WRITTEN_PREFIX)


def strip(pod: Json) -> None:
    """Removes these entries in place. A pod's creator could else claim GPUs, or hide what the pod holds."""
    metadata = pod.get("metadata") or {}
    for field, unwanted in (("annotations", is_owned), ("labels", LABELS.__contains__)):
        entries = metadata.get(field) or {}
        kept = {key: value for key, value in entries.items() if not unwanted(key)}
        if len(kept) < len(entries):
            metadata[field] = kept
