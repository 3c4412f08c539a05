"""Every decision recorded from HAMi v2.10 is ours too."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proto.annotations import keys
from proto.annotations.device_cordon import decode_cordon
from proto.annotations.pod_devices import decode_pod_devices, encode_pod_devices
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import Container, Node, ObjectMeta, Pod, PodSpec, ResourceQuota, Resources
from scheduler_ext.cluster.accounting import effective
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.policies import parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, read_request
from scheduler_ext.scheduling.decide import Decision, decide
from scheduler_ext.scheduling.score import node_score

DATA = Path(__file__).parents[1] / "data" / "decisions"
CLUSTERS = sorted(DATA.glob("cluster/*.json"))
Case = dict[str, Any]


def test_every_single_node_decision_is_the_recorded_one() -> None:
    with gzip.open(DATA / "single-node.jsonl.gz", "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    different = [(number, difference) for number, case in enumerate(cases) if (difference := _difference(case))]
    assert len(cases) == 2500
    assert different == []


@pytest.mark.parametrize("file", CLUSTERS, ids=lambda file: file.stem)
def test_the_decision_on_a_cluster_is_a_recorded_one(file: Path) -> None:
    case = json.loads(file.read_text(encoding="utf-8"))
    pod, config = msgspec.convert(case["pod"], Pod), case["config"]
    settings = RequestSettings(
        default_memory_mib=config.get("defaultMemory", 0),
        default_cores=config.get("defaultCores", 0),
        node_policy=parse_node_policy(config.get("nodeSchedulerPolicy", "binpack")),
        gpu_policy=parse_gpu_policy(config.get("gpuSchedulerPolicy", "spread")),
    )
    if file.stem == "78-mem-huge":
        with pytest.raises(RequestError, match="counts MiB already"):
            read_request(pod, settings)
        return
    request = read_request(pod, settings)
    snapshot = _ledger(case["state"]["items"]).snapshot()
    expect = case["expect"]
    if request is None:
        assert expect["any_of"][0]["devices_to_allocate"] is None
        return
    decision = decide(request, snapshot, case["node_names"])
    assert decision.failed == expect["failed"] or decision.node is not None
    if decision.node is None:
        assert expect["any_of"] == [{"node": None, "devices_to_allocate": None}]
        return
    assert dict(decision.scores) == pytest.approx(expect["scores"], rel=1e-7)
    best = {score for outcome in expect["any_of"] if (score := expect["scores"][outcome["node"]]) is not None}
    assert expect["scores"][decision.node] in best
    _assert_as_well_connected(decision, expect["any_of"], snapshot)


def _assert_as_well_connected(decision: Decision, outcomes: list[Case], snapshot: Snapshot) -> None:
    """Equal devices; of a node HAMi could have drawn but did not, the same positions."""
    assert decision.node is not None
    ours = encode_pod_devices(decision.shares)
    theirs = {outcome["devices_to_allocate"].replace(outcome["node"], decision.node) for outcome in outcomes}
    if ours in theirs:
        return
    scores = snapshot.nodes[decision.node].node.pair_scores
    assert {_total(text, scores) for text in theirs} == {_total(ours, scores)}


def _difference(case: Case) -> str:
    """Empty when our decision equals the recorded one."""
    expect = case["expect"]
    pod = _pod(case)
    try:
        request = read_request(pod, RequestSettings())
    except RequestError as error:
        return "" if expect["reason"] == "ERR" else f"refused: {error}"
    if request is None:
        return "" if expect["reason"] == "NOREQ" else "asks for no GPU"
    usage = _usage(case)
    limited = case["quota_memory"] is not None or case["quota_cores"] is not None
    quota = Quota(memory_mib=case["quota_memory"], cores=case["quota_cores"])
    snapshot = Snapshot(nodes={"n1": usage}, quotas={"default": quota} if limited else {})
    decision = decide(request, snapshot, ["n1"])
    if decision.node is None or not expect["fit"]:
        reason = decision.failed.get("n1", "fits")
        return "" if reason == expect["reason"] else f"{reason} != {expect['reason']}"
    return _placement_difference(request, usage, decision, expect)


def _placement_difference(request: GpuRequest, usage: NodeUsage, decision: Decision, expect: Case) -> str:
    if node_score(usage.gpus) != pytest.approx(expect["node_score"], rel=1e-7):
        return f"node score {node_score(usage.gpus)} != {expect['node_score']}"
    ours, theirs = encode_pod_devices(decision.shares), expect["devices_to_allocate"]
    if ours == theirs:
        held = effective(request.kinds, decision.shares)
        text = {f"{uuid}:{part.memory_mib}:{part.cores}:{part.slots}" for uuid, part in held.items()}
        return "" if text == set(expect["effective"].split()) else f"holds {text} != {expect['effective']}"
    scores = usage.node.pair_scores
    connected = request.policies.gpu.topology_aware and _total(ours, scores) == _total(theirs, scores)
    return "" if connected else f"{ours} != {theirs}"


def _total(devices: str, scores: PairScores) -> tuple[int, ...]:
    """The pair scores of each container's choice, the row of the device named first."""
    return tuple(
        sum(scores.get(a.uuid, {}).get(b.uuid, 0) for n, a in enumerate(shares) for b in shares[n + 1 :])
        for shares in decode_pod_devices(keys.DEVICES_TO_ALLOCATE, devices)
    )


def _pod(case: Case) -> Pod:
    def container(number: int, limits: dict[str, int]) -> Container:
        resources = Resources(limits={f"nvidia.com/{name}": amount for name, amount in limits.items()})
        return Container(name=f"c{number}", resources=resources)

    containers = [container(number, limits) for number, limits in enumerate(case["containers"])]
    metadata = ObjectMeta(name="p", namespace="default", uid="u", annotations=case["annotations"])
    return Pod(metadata=metadata, spec=PodSpec(containers=containers))


def _usage(case: Case) -> NodeUsage:
    devices = [
        Device(
            uuid=DeviceUUID(row["id"]),
            index=index,
            slots=row["count"],
            memory_mib=row["memory"],
            cores=row["cores"],
            type=row["type"],
            numa=row["numa"],
            mode="hami-core",
            healthy=row["health"],
        )
        for index, row in enumerate(case["devices"])
    ]
    gpus = (
        GpuUsage(device, row["used"], row["used_memory"], row["used_cores"])
        for device, row in zip(devices, case["devices"], strict=True)
    )
    cordoned = decode_cordon(case["cordon"])
    node = RegisteredNode(name="n1", devices=tuple(devices), pair_scores=case["pair_scores"], cordoned=cordoned)
    return NodeUsage(node=node, gpus=tuple(gpus))


def _ledger(items: list[Case]) -> Ledger:
    ledger = Ledger()
    ledger.replace_nodes(msgspec.convert(item, Node) for item in items if item["kind"] == "Node")
    ledger.replace_pods(msgspec.convert(item, Pod) for item in items if item["kind"] == "Pod")
    ledger.replace_quotas(msgspec.convert(item, ResourceQuota) for item in items if item["kind"] == "ResourceQuota")
    return ledger
