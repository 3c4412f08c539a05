"""Handshake, device cordon, bind phase and times."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.node_allocation import AllocationMode, decode_mode
from proto.annotations.node_handshake import Handshake, HandshakeState, decode_handshake, encode_reported
from proto.annotations.node_lock import BindPhase, encode_time
from proto.annotations.node_register import decode_cordon, encode_cordon
from proto.devices import DeviceUUID

AT = datetime(2024, 1, 10, 4, 6, 57, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "handshake"),
    [
        ("Requesting_2024.01.10 04:06:57", Handshake(HandshakeState.REQUESTING, AT.replace(tzinfo=None))),
        ("Requesting_2024-01-10 04:06:57", Handshake(HandshakeState.REQUESTING, AT.replace(tzinfo=None))),
        ("Deleted_2024-01-10 04:06:57", Handshake(HandshakeState.DELETED, AT.replace(tzinfo=None))),
        ("Requesting_soon", Handshake(HandshakeState.REQUESTING, None)),
        (
            "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895",
            Handshake(HandshakeState.REPORTED, None),
        ),
        ("", Handshake(HandshakeState.REPORTED, None)),
        ("anything", Handshake(HandshakeState.REPORTED, None)),
    ],
)
def test_handshakes_are_told_by_their_word(value: str, handshake: Handshake) -> None:
    assert decode_handshake(value) == handshake


def test_our_answer_is_taken_for_a_report() -> None:
    assert encode_reported(AT) == "Reported 2024-01-10 04:06:57.000000 +0000"
    assert decode_handshake(encode_reported(AT)).state is HandshakeState.REPORTED


@given(st.text())
def test_no_handshake_is_an_error(value: str) -> None:
    assert decode_handshake(value).state in HandshakeState


def test_cordons_tolerate_blanks_and_empty_entries() -> None:
    assert decode_cordon(" GPU-b , ,GPU-a,,GPU-b") == {"GPU-a", "GPU-b"}
    assert decode_cordon("") == frozenset()
    assert encode_cordon([DeviceUUID("GPU-b"), DeviceUUID("GPU-a")]) == "GPU-a,GPU-b"


@given(st.frozensets(st.from_regex(r"GPU-[0-9a-f-]{1,36}", fullmatch=True).map(DeviceUUID)))
def test_cordons_round_trip(uuids: frozenset[DeviceUUID]) -> None:
    assert decode_cordon(encode_cordon(uuids)) == uuids


def test_bind_phases_are_three_words() -> None:
    assert list(BindPhase) == ["allocating", "success", "failed"]


def test_times_are_whole_unix_seconds() -> None:
    assert encode_time(AT.replace(microsecond=999)) == "1704859617"


def test_every_word_but_slots_means_that_the_node_needs_the_lock() -> None:
    slots, immediate = AllocationMode
    assert [decode_mode(mode.value) for mode in AllocationMode] == [slots, immediate]
    assert [decode_mode(word) for word in (None, "", "SLOTS", "slots/2")] == [immediate] * 4
