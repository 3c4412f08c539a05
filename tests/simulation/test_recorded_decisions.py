"""Every decision recorded from HAMi v2.10 is ours too, replayed line by line."""

import json
from typing import Any

import msgspec
import pytest

from proto.annotations import keys
from proto.annotations.node_register import decode_scores
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import PairScores
from scheduler_ext.requests import RequestSettings
from simulation import replay
from tests.scheduler_ext.recorded import CLUSTERS, cluster, single_nodes

Case = dict[str, Any]


def answers(lines: list[bytes]) -> list[Case]:
    return [json.loads(msgspec.json.encode(answer)) for answer in replay.answers(lines, RequestSettings())]


def test_every_single_node_decision_is_the_recorded_one() -> None:
    lines = single_nodes()
    cases = [msgspec.json.decode(line) for line in lines]
    pairs = list(zip(cases, answers(lines), strict=True))
    refused = [ours for case, ours in pairs if _asks_beyond_a_gpu(case)]
    pairs = [(case, ours) for case, ours in pairs if not _asks_beyond_a_gpu(case)]
    different = [(case, ours) for case, ours in pairs if case["expect"] != ours and not _as_well_connected(case, ours)]
    assert len(pairs) + len(refused) == 2500
    # HAMi gives each container what its policy prefers, and refuses these pods when a later one finds too little.
    assert len(different) == 13
    assert all(_fits_with_other_choices(case, ours) for case, ours in different)
    # HAMi's scheduler takes them as 100, and its webhook refuses them; we refuse them everywhere.
    assert {ours["reason"] for ours in refused} == {replay.REFUSED}


def _fits_with_other_choices(case: Case, ours: Case) -> bool:
    asking = [each for each in case["containers"] if each.get("gpu")]
    return len(asking) > 1 and ours["fit"] and not case["expect"]["fit"]


def _asks_beyond_a_gpu(case: Case) -> bool:
    """Whether a container that asks for a GPU wants more than 100 percent of its memory."""
    asked = (each for each in case["containers"] if each.get("gpu"))
    return any(int(each.get("gpumem-percentage", 0)) > 100 for each in asked)


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_decision_on_a_cluster_is_a_recorded_one(name: str) -> None:
    case = cluster(name)
    (ours,) = answers([json.dumps(case).encode()])
    if name == "78-mem-huge":
        assert (ours["node"], "counts MiB already" in ours["error"]) == (None, True)
        return
    expect = case["expect"]
    for key in ("scores", "failed", "error"):
        assert ours[key] == expect[key]
    if ours["node"] is None:
        assert expect["any_of"] == [{"node": None, "devices_to_allocate": None}]
        return
    best = {expect["scores"][outcome["node"]] for outcome in expect["any_of"]}
    assert expect["scores"][ours["node"]] in best
    _assert_as_well_connected(ours, expect["any_of"], case)


def _assert_as_well_connected(ours: Case, outcomes: list[Case], case: Case) -> None:
    """Equal devices; of a node HAMi could have drawn but did not, the same positions."""
    theirs = {
        devices.replace(outcome["node"], ours["node"]) if (devices := outcome["devices_to_allocate"]) else None
        for outcome in outcomes
    }
    if ours["devices_to_allocate"] in theirs:
        return
    scores = _pair_scores(case, ours["node"])
    assert {_total(text, scores) for text in theirs if text} == {_total(ours["devices_to_allocate"], scores)}


def _as_well_connected(case: Case, ours: Case) -> bool:
    """Whether a topology-aware choice differs from the recorded one in nothing that counts."""
    expect = case["expect"]
    if "topology-aware" not in case["annotations"].get(keys.GPU_POLICY, "") or not (expect["fit"] and ours["fit"]):
        return False
    totals = {_total(answer["devices_to_allocate"], case["pair_scores"]) for answer in (expect, ours)}
    return len(totals) == 1 and ours["node_score"] == expect["node_score"]


def _total(devices: str, scores: PairScores) -> tuple[int, ...]:
    """The pair scores of each container's choice, the row of the device named first."""
    return tuple(
        sum(scores.get(a.uuid, {}).get(b.uuid, 0) for n, a in enumerate(shares) for b in shares[n + 1 :])
        for shares in decode_pod_devices(keys.DEVICES_TO_ALLOCATE, devices)
    )


def _pair_scores(case: Case, node: str) -> PairScores:
    (annotations,) = (
        item["metadata"]["annotations"]
        for item in case["state"]["items"]
        if item["kind"] == "Node" and item["metadata"]["name"] == node
    )
    return decode_scores(annotations[keys.NODE_SCORE]) if keys.NODE_SCORE in annotations else {}
