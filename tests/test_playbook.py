import pytest

from tests.playbook import converse


def test_a_playbook_shows_the_command_that_is_missing_and_the_one_in_its_place() -> None:
    converse(lambda _, event: [f"saw {event}"], (1, "a", ["saw a"]), (2, "b", ["saw b"]))
    with pytest.raises(AssertionError, match=r"(?s)  1: a\n- 1:   → stop\n.*\+ 1:   → go"):
        converse(lambda _, __: ["go"], (1, "a", ["stop"]))
