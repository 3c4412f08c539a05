"""`topogpu.io/undecided-pods`: what kubelet gave to the node's pods that have no decision.

`{"version":1,"pods":{"<pod UID>":{"GPU-a":2}},"more":3}`: how many replicas of each GPU each of them holds. The node
daemon writes it. What an omitted pod holds is unknown; `more` counts the pods beyond the limit.
"""

from collections.abc import Mapping

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_UNDECIDED
from proto.annotations.values import Int32, decode_json
from proto.devices import DeviceUUID

Given = Mapping[DeviceUUID, int]
"""Slots by GPU, 1 or more for each."""

VERSION = 1
MOST_PODS = 64
"""The most pods: with 16 GPUs each about 50 KB. A Node's annotations together may have 256 KiB."""


class _UndecidedDocument(msgspec.Struct, omit_defaults=True):
    version: int
    pods: dict[str, dict[DeviceUUID, Int32]] = {}
    more: int = 0


def encode_undecided(pods: Mapping[str, Given]) -> str:
    """Writes pods in order of their UIDs, up to the limit."""
    named = sorted(pods)[:MOST_PODS]
    rows = {uid: dict(sorted(pods[uid].items())) for uid in named}
    return msgspec.json.encode(_UndecidedDocument(version=VERSION, pods=rows, more=len(pods) - len(named))).decode()


def decode_undecided(value: str) -> Mapping[str, Given]:
    """Reads what each pod holds, by UID. Raises AnnotationError for another version, or naming the pod that cannot be
    read.
    """
    document = decode_json(NODE_UNDECIDED, value, _UndecidedDocument)
    if document.version != VERSION:
        raise AnnotationError(NODE_UNDECIDED, "$.version", f"expected {VERSION}, found {document.version}")
    for uid, given in document.pods.items():
        if not uid or not given:
            raise AnnotationError(NODE_UNDECIDED, f"$.pods.{uid}", "expected the UID of a pod and its GPUs")
        for gpu, replicas in given.items():
            if not gpu or replicas < 1:
                raise AnnotationError(
                    NODE_UNDECIDED, f"$.pods.{uid}", f"expected a GPU and 1 or more: {gpu!r}, {replicas}"
                )
    return document.pods
