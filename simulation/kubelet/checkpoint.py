"""kubelet's device-manager checkpoint, `kubelet_internal_checkpoint`, in the form of kubelet 1.20 and later.

Source: kubelet's pkg/kubelet/cm/devicemanager/checkpoint. Kubelet computes its checksum over Go's in-memory dump, which
only kubelet can do; here it is computed over the JSON of `Data`.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CHECKPOINT_NAME = "kubelet_internal_checkpoint"
NO_NUMA = -1


class ForeignCheckpoint(Exception):
    """The file is not one that kubelet wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One resource of one container."""

    pod_uid: str
    container: str
    resource: str
    ids_by_numa: Mapping[int, tuple[str, ...]]
    response: bytes


def encode_checkpoint(entries: Sequence[CheckpointEntry], registered: Mapping[str, Sequence[str]]) -> str:
    """Returns the file's text: what every container holds, and the ids every resource has."""
    data = {
        "PodDeviceEntries": [_entry(entry) for entry in entries],
        "RegisteredDevices": {resource: sorted(ids) for resource, ids in sorted(registered.items())},
    }
    checksum = fnv32a(json.dumps(data, separators=(",", ":")).encode())
    return json.dumps({"Data": data, "Checksum": checksum}, separators=(",", ":"))


def decode_checkpoint(text: str) -> tuple[list[CheckpointEntry], dict[str, tuple[str, ...]]]:
    """Returns what `encode_checkpoint` was given. Raises CheckpointUnreadable, also where the checksum does not fit."""
    try:
        whole: dict[str, Any] = json.loads(text)
        data = whole["Data"]
        if fnv32a(json.dumps(data, separators=(",", ":")).encode()) != whole["Checksum"]:
            raise ForeignCheckpoint("checkpoint is corrupted")
        entries = [_read_entry(entry) for entry in data["PodDeviceEntries"]]
        return entries, {resource: tuple(ids) for resource, ids in data["RegisteredDevices"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignCheckpoint(f"checkpoint is corrupted: {error}") from error


def fnv32a(data: bytes) -> int:
    """Returns the hash of Fowler-Noll-Vo 1a, 32 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _entry(entry: CheckpointEntry) -> dict[str, object]:
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": {str(numa): sorted(ids) for numa, ids in sorted(entry.ids_by_numa.items())},
        "AllocResp": base64.b64encode(entry.response).decode(),
    }


def _read_entry(entry: Mapping[str, Any]) -> CheckpointEntry:
    return CheckpointEntry(
        pod_uid=entry["PodUID"],
        container=entry["ContainerName"],
        resource=entry["ResourceName"],
        ids_by_numa={int(numa): tuple(ids) for numa, ids in entry["DeviceIDs"].items()},
        response=base64.b64decode(entry["AllocResp"]),
    )
