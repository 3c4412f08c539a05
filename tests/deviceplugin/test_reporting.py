from dataclasses import replace

from deviceplugin.reporting import AllocationMode, report, with_missing
from proto.annotations.keys import NODE_ALLOCATION, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_register import decode_register
from proto.annotations.node_score import decode_scores
from proto.kubernetes.objects import Node, ObjectMeta
from tests.deviceplugin.gpus import PAIR, A, B

SCORES = {A: {B: 1240}, B: {A: 1240}}


def node(annotations: dict[str, str]) -> Node:
    return Node(metadata=ObjectMeta(name="node-1", annotations=annotations))


def said(found: Node) -> dict[str, str]:
    body = report(found, PAIR, SCORES, AllocationMode.IMMEDIATE)
    assert body is not None
    metadata = body["metadata"]
    assert isinstance(metadata, dict)
    annotations: dict[str, str] = metadata["annotations"]
    return annotations


def test_a_silent_node_is_given_all_three_annotations() -> None:
    annotations = said(node({"other": "kept"}))
    assert decode_register(annotations[NODE_REGISTER]) == PAIR
    assert decode_scores(annotations[NODE_SCORE]) == SCORES
    assert annotations[NODE_ALLOCATION] == "immediate"
    assert len(annotations) == 3


def test_a_node_that_says_it_already_is_left_alone() -> None:
    assert report(node(said(node({}))), PAIR, SCORES, AllocationMode.IMMEDIATE) is None


def test_the_order_the_gpus_were_found_in_makes_no_difference() -> None:
    assert report(node(said(node({}))), PAIR[::-1], SCORES, AllocationMode.IMMEDIATE) is None


def test_only_what_differs_is_patched() -> None:
    annotations = said(node({})) | {NODE_SCORE: "[]"}
    assert list(said(node(annotations))) == [NODE_SCORE]


def test_a_gpu_that_vanished_stays_unhealthy() -> None:
    assert with_missing(PAIR, PAIR[1:]) == (replace(PAIR[0], healthy=False), PAIR[1])
    assert with_missing((), PAIR) == PAIR
