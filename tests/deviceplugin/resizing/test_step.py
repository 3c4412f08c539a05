"""The daemon's steps about one wish, as dialogues: a look goes in, the next step comes out."""

from collections.abc import Mapping
from typing import Any

import pytest

from deviceplugin.resizing.step import PodLook, SetLimits, WriteAnswer, next_step, served
from proto.annotations.memory_resize import ResizeAnswer, ResizeState
from proto.devices import DeviceShare, DeviceUUID, PodShares
from tests.playbook import converse

A, B = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")
MIB = 1 << 20


def shares(*amounts: int) -> PodShares:
    """One container for each amount, with that of a GPU."""
    return tuple((DeviceShare(uuid=A, memory_mib=mib, cores=0),) for mib in amounts)


def answer(wish: str, state: str, why: str = "") -> ResizeAnswer:
    return ResizeAnswer(wish=wish, state=ResizeState(state), why=why)


def look(wish: str, *, has: int = 8, limit: int | None = None, used: int = 0, **more: Any) -> PodLook:
    """A pod whose one container `c0` has so much, is limited to so much, and uses so much."""
    facts: dict[str, Any] = {
        "answer": None,
        "containers": ["c0"],
        "shares": shares(has),
        "running": {"c0"},
        "expected": {"c0"},
        "held": {"c0": {A: has if limit is None else limit}},
        "used_bytes": {"c0": {A: used * MIB}},
    }
    return PodLook(wish=wish, **(facts | more))


def step(_: float, seen: PodLook) -> list[object]:
    found = next_step(seen)
    return [] if found is None else [found]


def refusal(wish: str, why: str) -> WriteAnswer:
    return WriteAnswer(answer(wish, "refused", why))


def test_a_pod_that_shrinks_is_limited_first_and_is_ready_once_it_uses_no_more() -> None:
    busy = f"container c0 uses 6 MiB of {A}, and shall have 4 MiB; it gets no more until it has given that back"
    converse(
        step,
        (0, look("4"), [WriteAnswer(answer("4", "shrinking"))]),
        (1, look("4", answer=answer("4", "shrinking")), [SetLimits("c0", {A: 4})]),
        (1, look("4", limit=4, used=6, answer=answer("4", "shrinking")), [WriteAnswer(answer("4", "shrinking", busy))]),
        (2, look("4", limit=4, used=5, answer=answer("4", "shrinking", busy)), []),
        (3, look("4", limit=4, used=4, answer=answer("4", "shrinking", busy)), [WriteAnswer(answer("4", "ready"))]),
        (4, look("4", limit=4, answer=answer("4", "ready")), []),
        (5, look("4", has=4, answer=answer("4", "done")), []),
    )


def test_a_pod_that_grows_is_limited_last() -> None:
    converse(
        step,
        (0, look("12"), [WriteAnswer(answer("12", "ready"))]),
        (1, look("12", answer=answer("12", "ready")), []),
        (2, look("12", answer=answer("12", "growing")), []),
        (3, look("12", has=12, limit=8, answer=answer("12", "growing")), [SetLimits("c0", {A: 12})]),
        (4, look("12", has=12, answer=answer("12", "growing")), [WriteAnswer(answer("12", "done"))]),
        (5, look("12", has=12, answer=answer("12", "done")), []),
    )


def test_a_wish_that_changes_or_goes_takes_its_promise_away_before_a_limit_is_raised() -> None:
    ready = answer("4", "ready")
    converse(
        step,
        (0, look("6", limit=4, answer=ready), [WriteAnswer(answer("6", "shrinking"))]),
        (1, look("6", limit=4, answer=answer("6", "shrinking")), [SetLimits("c0", {A: 6})]),
        (2, look("", limit=4, answer=ready), [refusal("", "the wish was taken back")]),
        (3, look("", answer=answer("4", "growing")), [refusal("", "the wish was taken back")]),
        (4, look("", limit=4, answer=answer("4", "refused", "no")), [SetLimits("c0", {A: 8})]),
        (5, look("", answer=answer("4", "refused", "no")), [WriteAnswer(None)]),
        (6, look("", answer=None), []),
    )


def test_the_answer_to_a_wish_that_was_taken_back_stays_until_all_limits_are_what_the_pod_holds() -> None:
    over = answer("", "refused", "the wish was taken back")
    converse(
        step,
        (0, look("", limit=4, answer=over), [SetLimits("c0", {A: 8})]),
        (1, look("", limit=4, answer=over, failed={"c0": "broken"}), []),
        (2, look("", held={}, answer=over), []),
        (3, look("", answer=over), [WriteAnswer(None)]),
    )


def test_a_refused_wish_leaves_the_container_what_it_holds() -> None:
    over = answer("20", "refused", "no room")
    converse(
        step,
        (0, look("20", limit=4, answer=over), [SetLimits("c0", {A: 8})]),
        (1, look("20", answer=over), []),
        (2, look("20@2", answer=over), [WriteAnswer(answer("20@2", "ready"))]),
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(
            {"used": 2},
            WriteAnswer(answer("4", "shrinking", "broken")),
            id="it may have used too much when the driver refused",
        ),
        pytest.param(
            {"used": 2, "answer": answer("4", "shrinking", "broken")}, refusal("4", "broken"), id="refused again"
        ),
        pytest.param(
            {"used": 6},
            WriteAnswer(
                answer(
                    "4",
                    "shrinking",
                    f"container c0 uses 6 MiB of {A}, and shall have 4 MiB; it gets no more until it has given that "
                    "back; broken",
                )
            ),
            id="a driver that takes no limit below what is used",
        ),
        pytest.param({"answer": answer("4", "ready")}, None, id="promised: it is tried again"),
    ],
)
def test_what_the_driver_does_not_take(facts: Mapping[str, Any], expected: object) -> None:
    assert next_step(look("4", failed={"c0": "broken"}, **{"answer": answer("4", "shrinking"), **facts})) == expected


def test_growth_that_the_driver_does_not_take_is_tried_again_and_the_reason_is_said_once() -> None:
    growing, said = answer("12", "growing"), answer("12", "growing", "broken")
    converse(
        step,
        (0, look("12", has=8, answer=growing, failed={"c0": "broken"}), []),
        (1, look("12", has=12, limit=8, answer=growing, failed={"c0": "broken"}), [WriteAnswer(said)]),
        (2, look("12", has=12, limit=8, answer=said, failed={"c0": "broken"}), []),
        (3, look("12", has=12, limit=8, answer=said), [SetLimits("c0", {A: 12})]),
        (3, look("12", has=12, answer=said), [WriteAnswer(answer("12", "done"))]),
    )


def test_use_that_the_driver_does_not_show_promises_nothing() -> None:
    assert next_step(look("4", limit=4, used_bytes={}, answer=answer("4", "shrinking"))) is None


def test_a_container_that_does_not_run_yet_is_waited_for_and_one_that_the_driver_does_not_hold_refused() -> None:
    assert next_step(look("4", held={}, running=set())) is None
    assert next_step(look("4", held={})) is None
    found = next_step(look("4", held={}, expected=set()))
    assert isinstance(found, WriteAnswer)
    assert found.answer is not None
    assert found.answer.why.startswith("the driver does not limit the GPU memory of container c0, which has whole GPUs")


def test_limits_stay_on_the_gpus_that_a_container_has_whatever_its_annotation_names_by_now() -> None:
    moved: dict[str, Any] = {"held": {"c0": {B: 8}}}
    found = next_step(look("12", **moved))
    assert isinstance(found, WriteAnswer)
    assert found.answer is not None
    assert "has other GPUs than hami.io/vgpu-devices-allocated names" in found.answer.why
    assert next_step(look("12", **moved, answer=found.answer)) is None
    assert next_step(look("", **moved, answer=found.answer)) == WriteAnswer(None)


def test_a_wish_for_what_the_pod_has_is_done_and_an_unreadable_decision_refuses_it() -> None:
    said = answer("8", "refused", "unreadable")
    lost: dict[str, Any] = {"problem": "unreadable", "shares": ()}
    converse(
        step,
        (0, look("8"), [WriteAnswer(answer("8", "done", "it has these amounts already"))]),
        (1, look("8", **lost), [WriteAnswer(said)]),
        (2, look("8", **lost, answer=said), []),
        (3, look("", **lost, answer=said), [WriteAnswer(None)]),
        (4, look("", **lost), []),
    )


def test_containers_that_shrink_and_grow_together_are_limited_by_the_smaller_amount() -> None:
    pair: dict[str, Any] = {
        "containers": ["c0", "c1"],
        "shares": shares(8, 4),
        "running": {"c0", "c1"},
        "expected": {"c0", "c1"},
    }
    held = {"c0": {A: 8}, "c1": {A: 4}}
    wish = "c0=2,c1=10"
    low, unused = held | {"c0": {A: 2}}, {"c0": {A: 0}, "c1": {A: 0}}
    ready = WriteAnswer(answer(wish, "ready"))
    converse(
        step,
        (0, look(wish, **pair, held=held), [WriteAnswer(answer(wish, "shrinking"))]),
        (1, look(wish, **pair, held=held, answer=answer(wish, "shrinking")), [SetLimits("c0", {A: 2})]),
        (2, look(wish, **pair, held=low, answer=answer(wish, "shrinking"), used_bytes=unused), [ready]),
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, 8),
        (answer("4", "ready"), 4),
        (answer("4", "shrinking"), 4),
        (answer("12", "growing"), 8),
        (answer("4", "refused", "no"), 8),
        (answer("nonsense", "ready"), 8),
    ],
)
def test_a_container_that_starts_gets_no_more_than_an_open_answer_says(
    given: ResizeAnswer | None, expected: int
) -> None:
    assert served(given, ["c0"], shares(8)) == shares(expected)
