"""`topogpu.io/undecided-pods`: what kubelet gave to the node's pods that no scheduler of ours has decided for.

`{"version":1,"pods":{"<pod UID>":{"GPU-a":2}},"more":3}`: how many slots of which GPU each of them holds. The node
daemon writes it. A pod that is not in it holds what is not known; `more` says how many were left out for their number.
"""

from collections.abc import Mapping

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_UNDECIDED
from proto.annotations.values import decode_json
from proto.devices import DeviceUUID

Given = Mapping[DeviceUUID, int]
"""Slots by GPU, 1 or more of each."""

VERSION = 1
MOST_PODS = 64
"""With 16 GPUs each about 50 KB; a Node's annotations together may have 256 KiB."""


class _Document(msgspec.Struct, omit_defaults=True):
    version: int
    pods: dict[str, dict[DeviceUUID, int]] = {}
    more: int = 0


def encode_undecided(pods: Mapping[str, Given]) -> str:
    """By pod UID, in order; of many the first."""
    named = sorted(pods)[:MOST_PODS]
    rows = {uid: dict(sorted(pods[uid].items())) for uid in named}
    return msgspec.json.encode(_Document(version=VERSION, pods=rows, more=len(pods) - len(named))).decode()


def decode_undecided(value: str) -> Mapping[str, Given]:
    """By pod UID. Raises AnnotationError for another version, and naming the pod that cannot be read."""
    document = decode_json(NODE_UNDECIDED, value, _Document)
    if document.version != VERSION:
        raise AnnotationError(NODE_UNDECIDED, "$.version", f"expected {VERSION}, found {document.version}")
    for uid, given in document.pods.items():
        if not uid or not given:
            raise AnnotationError(NODE_UNDECIDED, f"$.pods.{uid}", "expected the UID of a pod and its GPUs")
        for gpu, slots in given.items():
            if not gpu or slots < 1:
                raise AnnotationError(
                    NODE_UNDECIDED, f"$.pods.{uid}", f"expected a GPU and 1 or more: {gpu!r}, {slots}"
                )
    return document.pods
