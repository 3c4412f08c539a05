"""Questions to several GPUs at once, of which some are not answered in time."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from deviceplugin.nvml.lanes import HANG_SECONDS, Hangs, Lanes

SOON = 0.01


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def test_lanes_that_wait_for_each_other_are_asked_at_once() -> None:
    meeting = threading.Barrier(3, timeout=60)
    answers = Lanes().ask("?", dict.fromkeys("abc", meeting.wait), 60)
    assert sorted(answers.values()) == [0, 1, 2]  # type: ignore[type-var]


def test_lanes_that_answer_promptly_are_asked_in_turn_by_one_thread() -> None:
    lanes, before = Lanes(prompt_seconds=60), threading.active_count()
    for _ in range(3):
        asked = list[str]()
        lanes.ask("?", {lane: partial(asked.append, lane) for lane in "abc"}, 120)
        assert asked == ["a", "b", "c"]
    assert threading.active_count() == before + 1


def test_a_lane_that_hangs_holds_up_none_behind_it(gate: threading.Event) -> None:
    lanes, before = Lanes(), threading.active_count()
    hanging, clear = {"a": gate.wait, "b": gate.wait}, {"c": lambda: 3, "d": lambda: 4}
    for _ in range(3):
        answers = lanes.ask("?", {**hanging, **clear}, 1)
        assert {lane for lane, answer in answers.items() if isinstance(answer, Hangs)} == {"a", "b"}
        assert (answers["c"], answers["d"]) == (3, 4)
    assert threading.active_count() <= before + 4


def test_what_a_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Lanes().ask("?", {"a": lambda: 1 // 0}, 60)


def test_one_lane_that_hangs_keeps_no_answer_of_another(gate: threading.Event) -> None:
    clock = [0.0]
    lanes = Lanes(lambda: clock[0])
    assert lanes.ask("?", {"a": lambda: 1, "b": gate.wait}, SOON) == {"a": 1, "b": Hangs(0.0)}
    clock[0] = 5.0
    ran = list[str]()
    assert lanes.ask("other", {"a": lambda: 2, "b": lambda: ran.append("b")}, 60) == {"a": 2, "b": Hangs(5.0)}
    assert (ran, lanes.any_hangs) == ([], True)


def test_a_late_answer_is_the_next_answer_to_its_question_and_to_no_other(gate: threading.Event) -> None:
    lanes, done = Lanes(), threading.Event()

    def late() -> str:
        gate.wait()
        done.set()
        return "late"

    assert isinstance(lanes.ask("name", {"a": late}, SOON)["a"], Hangs)
    gate.set()
    assert done.wait(60)
    while isinstance(lanes.ask("size", {"a": lambda: "size"}, 60)["a"], Hangs):
        pass  # between the end of the function and its result
    assert lanes.ask("size", {"a": lambda: "size"}, 60) == {"a": "size"}
    assert lanes.ask("name", {"a": lambda: "fresh"}, 60) == {"a": "late"}
    assert lanes.ask("name", {"a": lambda: "fresh"}, 60) == {"a": "fresh"}
    assert not lanes.any_hangs


def test_a_lane_that_hangs_gets_no_second_thread(gate: threading.Event) -> None:
    lanes, before = Lanes(), threading.active_count()
    for _ in range(5):
        lanes.ask("?", {"a": gate.wait}, SOON)
    assert threading.active_count() == before + 1


def test_closed_lanes_leave_no_thread() -> None:
    lanes = Lanes()
    threads = lanes.ask("?", {"a": threading.current_thread, "b": threading.current_thread}, 60)
    lanes.close()
    for thread in threads.values():
        assert isinstance(thread, threading.Thread)
        thread.join(60)
        assert not thread.is_alive()


def test_the_words_do_not_change_with_each_second() -> None:
    said = {str(Hangs(seconds / 10)) for seconds in range(10, 1000)}
    assert said == {"the driver has not answered for 1 s", f"the driver has not answered for {HANG_SECONDS:g} s"}


def test_a_lane_that_hangs_keeps_no_process_from_ending() -> None:
    script = (
        "import threading; from deviceplugin.nvml.lanes import Lanes;"
        "print(Lanes().ask('?', {'a': threading.Event().wait}, 0.01)['a'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "the driver has not answered for 1 s\n"
