"""Dialogues with the pace of the Node's writer: an event at a time, and the command that answers it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.node.pace import (
    AwaitChange,
    AwaitReturn,
    Looked,
    NodePace,
    Pause,
    Taken,
    Unreachable,
    Write,
    WriteRefused,
    step,
)

Event = Looked | Taken | WriteRefused | Unreachable
Command = Write | AwaitChange | Pause | AwaitReturn


def commands(*dialogue: tuple[float, Event]) -> list[Command]:
    pace, answers = NodePace(), list[Command]()
    for at, event in dialogue:
        pace, command = step(pace, event, at)
        answers.append(command)
    return answers


def writes_of_a_minute(*parts: str) -> list[str]:
    """What is written to a Node on which another program undoes each write at once."""
    pace, at, written = NodePace(), 0.0, list[str]()
    while at < 60:
        pace, command = step(pace, Looked(parts), at)
        if isinstance(command, Write):
            written.append(command.part)
            pace, command = step(pace, Taken(command.part), at)
        assert not isinstance(command, Write)
        at += command.seconds or 0
    return written


def test_what_is_due_is_written_at_once_and_then_a_change_is_awaited() -> None:
    assert commands((0, Looked(("gpus",))), (0, Taken("gpus")), (0, Looked(()))) == [
        Write("gpus"),
        Pause(0),
        AwaitChange(None),
    ]


def test_parts_are_written_in_turn_and_one_part_twice_only_after_half_a_second() -> None:
    both = Looked(("gpus", "totals"))
    assert commands((0, both), (0, Taken("gpus")), (0, both), (0, Taken("totals")), (0, both), (0.5, both)) == [
        *(Write("gpus"), Pause(0), Write("totals"), Pause(0)),
        *(AwaitChange(0.5), Write("gpus")),
    ]


def test_time_alone_brings_the_next_look() -> None:
    assert commands((0, Looked((), 25)), (0, Taken("a")), (0, Looked(("a",), 25)), (0, Looked(("a",), 0.1))) == [
        *(AwaitChange(25), Pause(0), AwaitChange(0.5), AwaitChange(0.1)),
    ]


def test_a_refused_part_waits_longer_and_longer_and_the_others_do_not() -> None:
    both = Looked(("gpus", "totals"))
    assert commands(
        *((0, both), (0, WriteRefused("gpus")), (0, both), (0, Taken("totals"))),
        *((0, Looked(("gpus",))), (0.2, Looked(("gpus",))), (0, WriteRefused("gpus")), (0, Looked(("gpus",)))),
        *((0, Taken("gpus")), (0, WriteRefused("gpus")), (0, Looked(("gpus",)))),
    ) == [
        *(Write("gpus"), Pause(0), Write("totals"), Pause(0)),
        *(AwaitChange(0.2), Write("gpus"), Pause(0), AwaitChange(0.4)),
        *(Pause(0), Pause(0), AwaitChange(0.2)),
    ]


def test_an_unreachable_api_server_stops_all_parts_for_twice_as_long_each_time() -> None:
    away = [(float(at), Unreachable()) for at in range(9)]
    waits = [*map(AwaitReturn, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0])]
    first = AwaitReturn(0.2)
    assert commands(*away, (9, Taken("gpus")), (9, Unreachable())) == [*waits, Pause(0), first]
    assert commands((0, Unreachable()), (1, WriteRefused("gpus")), (1, Unreachable())) == [first, Pause(0), first]


def test_beyond_ten_writes_of_a_minute_every_write_doubles_the_pause_whatever_is_written() -> None:
    taken = [(0.0, Taken(f"part {number}")) for number in range(17)]
    assert commands(*taken)[9:] == [Pause(0), Pause(1), Pause(2), Pause(4), *[Pause(8)] * 4]
    assert commands(*((7.0 * number, Taken("gpus")) for number in range(17))) == [Pause(0)] * 17


def test_programs_that_undo_every_write_bring_a_bounded_number_of_writes_and_starve_no_part() -> None:
    assert len(writes_of_a_minute("gpus")) <= 20
    written = writes_of_a_minute("gpus", "totals", "labels")
    assert len(written) <= 20
    assert max(written.count(part) for part in written) - min(written.count(part) for part in written) <= 1


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True), st.floats(0, 1e6))
def test_a_part_that_is_due_is_written_within_the_longest_waits(parts: list[str], at: float) -> None:
    pace = NodePace()
    for _ in range(20):
        pace, _ = step(pace, WriteRefused(parts[0]), at)
    _, command = step(pace, Looked(tuple(parts)), at)
    if len(parts) > 1:
        assert command == Write(parts[1])
    else:
        assert isinstance(command, AwaitChange)
        assert command.seconds == pytest.approx(30.0)
    assert step(pace, Looked(tuple(parts)), at + 31)[1] in [Write(part) for part in parts]
