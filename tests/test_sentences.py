"""The checker of docstrings, comments and texts for people."""

import runpy
from pathlib import Path

import pytest

CHECKER = runpy.run_path(str(Path(__file__).parents[1] / "docs/prose/sentences.py"))
faults, has_main_verb = CHECKER["faults"], CHECKER["has_main_verb"]


def problems(source: str) -> list[str]:
    return [fault.problem for fault in faults("m.py", source)]


@pytest.mark.parametrize(
    "sentence",
    [
        "Kept room reduces a node's capacity, not a quota.",
        "Returns why the node is still locked, or nothing.",
        "Pods that hold GPUs count until they end.",
        "What a pod holds is one record.",
        "The socket may be missing.",
        "The pod is gone; its GPUs are free.",
    ],
)
def test_a_sentence_has_a_main_verb(sentence: str) -> None:
    assert has_main_verb(sentence)


@pytest.mark.parametrize(
    "fragment",
    [
        "What a pod holds of a node.",
        "GPUs that pods of the namespace hold.",
        "Where a pod asks for how much.",
        "Until the plugin ends the stream.",
        "The call's answer.",
        "The lock to write, or None while another pod holds a fresh one.",
        "Whether the node is ready: its kubelet reports that.",
    ],
)
def test_a_fragment_has_no_main_verb(fragment: str) -> None:
    assert not has_main_verb(fragment)


def test_a_docstring_of_a_function_needs_a_verb_and_that_of_a_value_may_be_a_definition() -> None:
    assert problems('def lock():\n    """The lock of the node."""') == ["no verb"]
    assert problems('def lock():\n    """Returns the lock of the node."""') == []
    assert problems('def show():\n    """Show the nodes."""') == []
    assert problems('def load():\n    """A machine by its name, by what only its name begins with."""') == ["no verb"]
    assert problems('def rest():\n    """After each search it rests as long."""') == []
    assert problems('LOCK = 1\n"""The lock of the node."""') == []
    assert problems('LOCK = 1\n"""Of the node."""') == ["neither a verb nor a noun that begins it"]


def test_a_verb_of_speech_is_found_in_docstrings_comments_and_texts_for_people_but_not_in_code() -> None:
    assert problems('class A:\n    """The node. It tells the pod."""') == ["a verb of speech (tells)"]
    assert problems("# The node was told that its pods end.\n") == ["a verb of speech (told)"]
    assert problems('log.info("%s says no", name)') == ["a verb of speech (says)"]
    assert problems('# `tell` is a method.\nprint("asks the user")') == []
    assert problems('raise Failed(f"{node} failed; its log says why")') == ["a verb of speech (says)"]
    assert problems('raise Failed("the pod asks for no GPU")') == []


def test_a_comment_of_its_own_lines_is_a_sentence_and_one_behind_code_explains_a_value() -> None:
    assert problems("# By content and not by time:\n# files differ.\n") == ["a fragment"]
    assert problems("x = 1  # of the header\n") == []
