"""`hami.io/node-handshake`: the liveness question of HAMi's schedulers and the answer of old plugins."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

_REQUEST_LAYOUTS = ("%Y-%m-%d %H:%M:%S", "%Y.%m.%d %H:%M:%S")


class HandshakeState(StrEnum):
    """The kinds of handshake. As in HAMi, a word anywhere in the value decides; anything else is a report."""

    REQUESTING = "Requesting"
    DELETED = "Deleted"
    REPORTED = "Reported"


@dataclass(frozen=True, slots=True)
class Handshake:
    """A handshake. `stamped_at` has no zone, because schedulers write their local time without one; None when
    unreadable.
    """

    state: HandshakeState
    stamped_at: datetime | None


def decode_handshake(value: str) -> Handshake:
    """Reads a handshake. It never fails: like HAMi, it takes any unknown value for a report."""
    for state in (HandshakeState.REQUESTING, HandshakeState.DELETED):
        if state in value:
            return Handshake(state, _stamp(value.partition("_")[2]))
    return Handshake(HandshakeState.REPORTED, None)


def encode_reported(now: datetime) -> str:
    """Returns the answer that schedulers up to 2.7 wait for; they compare the word, never the time."""
    return f"{HandshakeState.REPORTED} {now:%Y-%m-%d %H:%M:%S.%f %z}"


def _stamp(text: str) -> datetime | None:
    for layout in _REQUEST_LAYOUTS:
        try:
            return datetime.strptime(text, layout)  # noqa: DTZ007 - the wire carries no zone
        except ValueError:
            continue
    return None
