"""`topogpu.io/set-aside`: the node that is set aside for a pod that has waited for long.

`{"node":"a","since":"2030-01-01T00:00:00Z","until":"2030-01-02T00:00:00Z"}`. Without a node it is over, since `until`.
The extender writes it, and reads it after a restart or from another replica.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import SET_ASIDE
from proto.annotations.unhealthy_since import read_time, stamp
from proto.annotations.values import decode_json


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Times are in whole seconds since 1970. `node` is empty once it is over."""

    node: str
    since: int
    until: int


class _SetAsideDocument(msgspec.Struct, omit_defaults=True):
    since: str
    until: str
    node: str = ""


def encode_set_aside(aside: SetAside) -> str:
    since, until = (stamp(datetime.fromtimestamp(at, UTC)) for at in (aside.since, aside.until))
    return msgspec.json.encode(_SetAsideDocument(since=since, until=until, node=aside.node)).decode()


def decode_set_aside(value: str) -> SetAside:
    """Raises AnnotationError."""
    document = decode_json(SET_ASIDE, value, _SetAsideDocument)
    since = int(read_time(SET_ASIDE, "$.since", document.since).timestamp())
    until = int(read_time(SET_ASIDE, "$.until", document.until).timestamp())
    if until < since:
        raise AnnotationError(SET_ASIDE, "$.until", "it is before `since`")
    return SetAside(node=document.node, since=since, until=until)
