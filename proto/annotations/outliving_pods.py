"""`topogpu.io/outliving-pods`: containers that still run although the API server no longer has their pod.

`{"version":1,"asOf":"4711","pods":{"<pod UID>":{"GPU-a":[1,2000,30]}},"names":{"<pod UID>":"team/train"}}`: for each
such pod its containers, MiB and percent of cores by GPU, and its namespace and name as far as the daemon has seen it; a
pod without a decision has no GPU here. The node daemon writes it. A pod that was deleted at
resourceVersion `asOf` or earlier and is not listed has no running container.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.values import decode_json
from proto.devices import DeviceUUID

_Amount = Annotated[int, Meta(ge=0)]
Amounts = tuple[int, int, int]
"""Containers, MiB and percent of cores."""

MOST_PODS = 64
"""The most pods: with 16 GPUs each about 60 KB. A Node's annotations together may have 256 KiB."""


@dataclass(frozen=True, slots=True)
class Outliving:
    """The parts that each pod holds, by its UID and by GPU. `names` are their namespaces and names."""

    as_of: int
    pods: Mapping[str, Mapping[DeviceUUID, Amounts]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def has_ended(self, uid: str, deleted_at: int) -> bool:
        """Returns whether a pod that was deleted at that resourceVersion is known to have no running container."""
        return uid not in self.pods and deleted_at <= self.as_of


_Parts = dict[Annotated[DeviceUUID, Meta(min_length=1)], tuple[_Amount, _Amount, _Amount]]


class _OutlivingDocument(msgspec.Struct, rename="camel", omit_defaults=True):
    version: Literal[1]
    as_of: Annotated[str, Meta(pattern=r"^[0-9]{1,19}\Z")]
    pods: dict[Annotated[str, Meta(min_length=1)], _Parts] = {}
    names: dict[str, str] = {}


def encode_outliving(outliving: Outliving) -> str:
    """Writes the pods. Of too many it keeps the first by UID and sets `asOf` to 0, so that no omitted pod counts as
    ended.
    """
    named = sorted(outliving.pods)[:MOST_PODS]
    rows = {uid: dict(sorted(outliving.pods[uid].items())) for uid in named}
    as_of = outliving.as_of if len(named) == len(outliving.pods) else 0
    names = {uid: outliving.names[uid] for uid in named if uid in outliving.names}
    document = _OutlivingDocument(version=1, as_of=str(as_of), pods=rows, names=names)
    return msgspec.json.encode(document).decode()


def decode_outliving(value: str) -> Outliving:
    """Reads the pods. Raises AnnotationError, also for another version."""
    document = decode_json(NODE_OUTLIVING, value, _OutlivingDocument)
    return Outliving(as_of=int(document.as_of), pods=document.pods, names=document.names)
