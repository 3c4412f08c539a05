from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deviceplugin.inventory import with_vanished
from deviceplugin.node.desired import Desired, is_met, patch_of
from deviceplugin.node.registration import Offer, registration
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
from proto.annotations.node_register import decode_register, decode_scores
from proto.kubernetes.objects import Node
from tests.builders import node
from tests.deviceplugin.gpus import PAIR, A, B

T0 = datetime(2030, 1, 1, tzinfo=UTC)
SCORES = {A: {B: 1240}, B: {A: 1240}}
OFFER = Offer(devices=PAIR, scores=SCORES, mode=AllocationMode.IMMEDIATE, limits=NodeLimits.HAMI_CORE)


def noted(annotations: dict[str, str]) -> Node:
    return node("node-1", annotations=annotations)


def said(found: Node) -> dict[str, str]:
    return written(found, OFFER)


def written(found: Node, offer: Offer) -> dict[str, str]:
    return annotations_of(found, registration(found, offer, HamiScheduler.NONE, now=T0))


def annotations_of(found: Node, desired: Desired) -> dict[str, str]:
    """The annotations that are patched."""
    patch = patch_of(found, desired, T0)
    assert patch is not None
    metadata: Any = patch.body["metadata"]
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
        return written(found, replace(OFFER, simulated=simulated))

    assert due(noted({}), simulated=True)[NODE_SIMULATED] == "true"
    marked = noted(due(noted({}), simulated=True))
    assert due(marked, simulated=False) == {NODE_SIMULATED: None}


def test_a_node_that_says_it_already_is_left_alone() -> None:
    found = noted(said(noted({})))
    assert is_met(found, registration(found, OFFER, HamiScheduler.NONE, now=T0))


def test_the_order_the_gpus_were_found_in_makes_no_difference() -> None:
    found = noted(said(noted({})))
    assert is_met(found, registration(found, replace(OFFER, devices=PAIR[::-1]), HamiScheduler.NONE, now=T0))


def test_only_what_differs_is_patched() -> None:
    annotations = said(noted({})) | {NODE_SCORE: "[]"}
    assert list(said(noted(annotations))) == [NODE_SCORE]


def test_a_gpu_that_vanished_stays_unhealthy() -> None:
    assert with_vanished(PAIR, PAIR[1:]) == (replace(PAIR[0], healthy=False), PAIR[1])
    assert with_vanished((), PAIR) == PAIR


def due(
    annotations: dict[str, str], scheduler: HamiScheduler, answered_at: datetime | None, now: datetime
) -> tuple[dict[str, str], timedelta | None]:
    """The annotations that are patched, and the time until the next look."""
    found = noted(annotations)
    desired = registration(found, OFFER, scheduler, answered_at=answered_at, now=now)
    return {} if is_met(found, desired) else annotations_of(found, desired), desired.again_in


@pytest.mark.parametrize(("scheduler", "fields"), [(HamiScheduler.V2_4, 7), (HamiScheduler.V2_7, 9)])
def test_an_old_scheduler_is_told_in_text_and_its_question_is_answered_every_30_seconds(
    scheduler: HamiScheduler, fields: int
) -> None:
    first, _ = due({}, scheduler, None, T0)
    assert first[NODE_REGISTER].partition(":")[0].count(",") == fields - 1
    assert first[NODE_HANDSHAKE].startswith("Reported 2030-01-01")
    assert due(first, scheduler, T0, T0 + timedelta(hours=9)) == ({}, None)
    asked = first | {NODE_HANDSHAKE: "Requesting_2030-01-01 00:00:05"}
    later = T0 + timedelta(seconds=30)
    assert due(asked, scheduler, T0, T0 + timedelta(seconds=5)) == ({}, timedelta(seconds=25))
    assert list(due(asked, scheduler, T0, later)[0]) == [NODE_HANDSHAKE]
    set_back = T0 - timedelta(hours=9)
    assert list(due(asked, scheduler, T0, set_back)[0]) == [NODE_HANDSHAKE], "a clock may be set back"
    deleted = first | {NODE_HANDSHAKE: "Deleted_2030-01-01 00:01:05"}
    assert list(due(deleted, scheduler, None, T0)[0]) == [NODE_HANDSHAKE]


def test_a_2_9_scheduler_is_made_to_read_again_after_a_change_and_never_else() -> None:
    first, _ = due({}, HamiScheduler.V2_9, None, T0)
    assert decode_register(first[NODE_REGISTER]) == PAIR
    assert NODE_HANDSHAKE in first
    asked = first | {NODE_HANDSHAKE: "Requesting_2030-01-01 00:00:05"}
    assert due(asked, HamiScheduler.V2_9, T0, T0 + timedelta(hours=1)) == ({}, None)


def test_a_name_that_text_cannot_carry_is_written_with_blanks() -> None:
    odd = replace(OFFER, devices=(replace(PAIR[0], type="NVIDIA A,100:b"),), scores={})
    found = registration(noted({}), odd, HamiScheduler.V2_7, now=T0)
    assert "NVIDIA A 100 b" in annotations_of(noted({}), found)[NODE_REGISTER]
