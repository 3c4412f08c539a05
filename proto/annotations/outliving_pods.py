"""`topogpu.io/outliving-pods`: containers that run on though the API server has their pod no more.

`{"version":1,"asOf":"4711","pods":{"<pod UID>":{"GPU-a":[1,2000,30]}}}`: of each such pod containers, MiB and percent
of cores by GPU; of one without a decision no GPU. The node daemon writes it. Of every pod that was deleted at
resourceVersion `asOf` or earlier and is not in it, no container runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.values import decode_json
from proto.devices import DeviceUUID

Amounts = tuple[int, int, int]
"""Containers, MiB and percent of cores."""

VERSION = 1
MOST_PODS = 64
"""With 16 GPUs each about 60 KB; a Node's annotations together may have 256 KiB."""


@dataclass(frozen=True, slots=True)
class Outliving:
    """Pods by UID, what they hold by GPU."""

    as_of: int
    pods: Mapping[str, Mapping[DeviceUUID, Amounts]] = field(default_factory=dict)

    def has_ended(self, uid: str, deleted_at: int) -> bool:
        """Whether a pod that was deleted at that resourceVersion is known to run no more."""
        return uid not in self.pods and deleted_at <= self.as_of


class _Document(msgspec.Struct, rename="camel", omit_defaults=True):
    version: int
    as_of: str
    pods: dict[str, dict[DeviceUUID, tuple[int, int, int]]] = {}


def encode_outliving(outliving: Outliving) -> str:
    """Of too many pods the first by UID, and then `asOf` is 0: of no pod that is left out it is said that it ended."""
    named = sorted(outliving.pods)[:MOST_PODS]
    rows = {uid: dict(sorted(outliving.pods[uid].items())) for uid in named}
    as_of = outliving.as_of if len(named) == len(outliving.pods) else 0
    return msgspec.json.encode(_Document(version=VERSION, as_of=str(as_of), pods=rows)).decode()


def decode_outliving(value: str) -> Outliving:
    """Raises AnnotationError for another version, and naming what cannot be read."""
    document = decode_json(NODE_OUTLIVING, value, _Document)
    if document.version != VERSION:
        raise AnnotationError(NODE_OUTLIVING, "$.version", f"expected {VERSION}, found {document.version}")
    if not (document.as_of.isascii() and document.as_of.isdigit() and len(document.as_of) < 20):
        raise AnnotationError(NODE_OUTLIVING, "$.asOf", f"expected a resourceVersion, found {document.as_of!r}")
    for uid, held in document.pods.items():
        if not uid or any(not gpu or min(amounts) < 0 for gpu, amounts in held.items()):
            problem = "expected the UID of a pod, and of each GPU three amounts of 0 or more"
            raise AnnotationError(NODE_OUTLIVING, f"$.pods.{uid}", problem)
    return Outliving(as_of=int(document.as_of), pods=document.pods)
