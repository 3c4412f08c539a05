"""`topogpu.io/undecided-pods`: what kubelet gave to the node's pods that have no decision.

`{"version":1,"pods":{"<pod UID>":{"GPU-a":2}},"more":3}`: how many replicas of each GPU each of them holds. The node
daemon writes it. What an omitted pod holds is unknown; `more` counts the pods beyond the limit.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.annotations.keys import NODE_UNDECIDED
from proto.annotations.values import decode_json
from proto.devices import DeviceUUID, Positive

Given = Mapping[DeviceUUID, int]
"""Replicas by GPU, 1 or more for each."""

MOST_PODS = 64
"""The most pods: with 16 GPUs each about 50 KB. A Node's annotations together may have 256 KiB."""


_Gpus = dict[Annotated[DeviceUUID, Meta(min_length=1)], Positive]


class _UndecidedDocument(msgspec.Struct, omit_defaults=True):
    version: Literal[1]
    pods: dict[Annotated[str, Meta(min_length=1)], Annotated[_Gpus, Meta(min_length=1)]] = {}
    more: int = 0


def encode_undecided(pods: Mapping[str, Given]) -> str:
    """Writes pods in order of their UIDs, up to the limit."""
    named = sorted(pods)[:MOST_PODS]
    rows = {uid: dict(sorted(pods[uid].items())) for uid in named}
    return msgspec.json.encode(_UndecidedDocument(version=1, pods=rows, more=len(pods) - len(named))).decode()


def decode_undecided(value: str) -> Mapping[str, Given]:
    """Reads what each pod holds, by UID. Raises AnnotationError, also for another version."""
    return decode_json(NODE_UNDECIDED, value, _UndecidedDocument).pods
