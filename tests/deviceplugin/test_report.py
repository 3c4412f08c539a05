from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from deviceplugin.report import Report, report, with_missing
from deviceplugin.settings import HamiScheduler
from proto.annotations.keys import (
    NODE_ALLOCATION,
    NODE_HANDSHAKE,
    NODE_LIMITS,
    NODE_REGISTER,
    NODE_SCORE,
    NODE_SIMULATED,
)
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_register import decode_register
from proto.annotations.node_score import decode_scores
from proto.kubernetes.objects import Node
from tests.builders import node
from tests.deviceplugin.gpus import PAIR, A, B

T0 = datetime(2030, 1, 1, tzinfo=UTC)
SCORES = {A: {B: 1240}, B: {A: 1240}}


def noted(annotations: dict[str, str]) -> Node:
    return node("node-1", annotations=annotations)


def said(found: Node) -> dict[str, str]:
    return annotations_of(report(found, PAIR, SCORES, AllocationMode.IMMEDIATE, NodeLimits.HAMI_CORE, now=T0))


def annotations_of(due: Report) -> dict[str, str]:
    assert due.body is not None
    metadata = due.body["metadata"]
    assert isinstance(metadata, dict)
    annotations: dict[str, str] = metadata["annotations"]
    return annotations


def test_a_silent_node_is_given_all_four_annotations() -> None:
    annotations = said(noted({"other": "kept"}))
    assert decode_register(annotations[NODE_REGISTER]) == PAIR
    assert decode_scores(annotations[NODE_SCORE]) == SCORES
    assert (annotations[NODE_ALLOCATION], annotations[NODE_LIMITS]) == ("immediate", "hami-core")
    assert len(annotations) == 4


def test_simulated_gpus_are_marked_and_real_ones_take_the_mark_away() -> None:
    def due(found: Node, *, simulated: bool) -> dict[str, str]:
        return annotations_of(
            report(found, PAIR, SCORES, AllocationMode.SLOTS, NodeLimits.NONE, simulated=simulated, now=T0)
        )

    assert due(noted({}), simulated=True)[NODE_SIMULATED] == "true"
    marked = noted(due(noted({}), simulated=True))
    assert due(marked, simulated=False) == {NODE_SIMULATED: None}


def test_a_node_that_says_it_already_is_left_alone() -> None:
    assert (
        report(noted(said(noted({}))), PAIR, SCORES, AllocationMode.IMMEDIATE, NodeLimits.HAMI_CORE, now=T0) == Report()
    )


def test_the_order_the_gpus_were_found_in_makes_no_difference() -> None:
    assert (
        report(noted(said(noted({}))), PAIR[::-1], SCORES, AllocationMode.IMMEDIATE, NodeLimits.HAMI_CORE, now=T0)
        == Report()
    )


def test_only_what_differs_is_patched() -> None:
    annotations = said(noted({})) | {NODE_SCORE: "[]"}
    assert list(said(noted(annotations))) == [NODE_SCORE]


def test_a_gpu_that_vanished_stays_unhealthy() -> None:
    assert with_missing(PAIR, PAIR[1:]) == (replace(PAIR[0], healthy=False), PAIR[1])
    assert with_missing((), PAIR) == PAIR


def due(annotations: dict[str, str], scheduler: HamiScheduler, answered_at: datetime | None, now: datetime) -> Report:
    return report(
        noted(annotations),
        PAIR,
        SCORES,
        AllocationMode.IMMEDIATE,
        NodeLimits.HAMI_CORE,
        scheduler=scheduler,
        answered_at=answered_at,
        now=now,
    )


@pytest.mark.parametrize(("scheduler", "fields"), [(HamiScheduler.V2_4, 7), (HamiScheduler.V2_7, 9)])
def test_an_old_scheduler_is_told_in_text_and_its_question_is_answered_every_30_seconds(
    scheduler: HamiScheduler, fields: int
) -> None:
    first = annotations_of(due({}, scheduler, None, T0))
    assert first[NODE_REGISTER].partition(":")[0].count(",") == fields - 1
    assert first[NODE_HANDSHAKE].startswith("Reported 2030-01-01")
    assert due(first, scheduler, T0, T0 + timedelta(hours=9)) == Report()
    asked = first | {NODE_HANDSHAKE: "Requesting_2030-01-01 00:00:05"}
    later = T0 + timedelta(seconds=30)
    assert due(asked, scheduler, T0, T0 + timedelta(seconds=5)) == Report(look_again=later)
    assert list(annotations_of(due(asked, scheduler, T0, later))) == [NODE_HANDSHAKE]
    set_back = T0 - timedelta(hours=9)
    assert list(annotations_of(due(asked, scheduler, T0, set_back))) == [NODE_HANDSHAKE], "a clock may be set back"
    deleted = first | {NODE_HANDSHAKE: "Deleted_2030-01-01 00:01:05"}
    assert list(annotations_of(due(deleted, scheduler, None, T0))) == [NODE_HANDSHAKE]


def test_a_2_9_scheduler_is_made_to_read_again_after_a_change_and_never_else() -> None:
    first = annotations_of(due({}, HamiScheduler.V2_9, None, T0))
    assert decode_register(first[NODE_REGISTER]) == PAIR
    assert NODE_HANDSHAKE in first
    asked = first | {NODE_HANDSHAKE: "Requesting_2030-01-01 00:00:05"}
    assert due(asked, HamiScheduler.V2_9, T0, T0 + timedelta(hours=1)) == Report()


def test_a_name_that_text_cannot_carry_is_written_with_blanks() -> None:
    odd = replace(PAIR[0], type="NVIDIA A,100:b")
    found = report(
        noted({}), (odd,), {}, AllocationMode.IMMEDIATE, NodeLimits.HAMI_CORE, scheduler=HamiScheduler.V2_7, now=T0
    )
    assert "NVIDIA A 100 b" in annotations_of(found)[NODE_REGISTER]
