import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from simulation.outcome import ContainerOutcome, DemoOutcome, GpuGrant, PodOutcome
from simulation.report import as_json, print_report

UUID = "GPU-59ac43c9-a5c5-5aed-8427-9ade2cd0f0da"
LONG_NAME = "with-plain-sidekick-2"
RUNNING = PodOutcome(
    name=LONG_NAME,
    why="GPU container beside one without",
    phase="Running",
    node="node-12",
    choice="best-linked node, NV12 among both, only A100 80GB",
    containers=(
        ContainerOutcome(
            name="warm-up",
            phase="init",
            gpus=(GpuGrant(index=4, uuid=UUID, memory_mib=81920, cores=100),),
            env={"NVIDIA_VISIBLE_DEVICES": ",".join([UUID] * 4)},
            device_ids=(f"{UUID}-0",),
        ),
    ),
    annotations={"hami.io/vgpu-devices-allocated": f"{UUID},NVIDIA,81920,100:" * 5},
    reason="",
    refusals={},
)
WAITING = PodOutcome(
    name="too-big",
    why="more memory than any GPU has",
    phase="Pending",
    node="",
    choice="",
    containers=(),
    annotations={},
    reason="0/1 nodes are available: 1 8/8 CardInsufficientMemory.",
    refusals={"node-1": "8/8 CardInsufficientMemory (needs 200000 MiB; largest GPU of the node has 40960)"},
)


def outcome(*violations: str) -> DemoOutcome:
    return DemoOutcome(
        nodes=(),
        pods=(RUNNING, WAITING),
        violations=violations,
        seconds=1.0,
        kept_directory="",
    )


def printed(shown: DemoOutcome) -> str:
    into = io.StringIO()
    print_report(Console(file=into, width=100, highlight=False), shown)
    return into.getvalue()


def test_names_and_ids_are_whole_at_100_columns() -> None:
    text = printed(outcome())
    assert LONG_NAME in text
    assert ",".join([UUID] * 4) in text
    assert RUNNING.annotations["hami.io/vgpu-devices-allocated"] in text
    assert "warm-up (init)" in text
    assert "81920, 100 %" in text
    assert "…" not in text


def test_a_waiting_pod_shows_the_reason_of_every_node() -> None:
    lines = printed(outcome()).splitlines()
    assert any(line.startswith("too-big is Pending") and "0/1 nodes are available" in line for line in lines)
    assert f"  node-1: {WAITING.refusals['node-1']}" in lines


def test_the_verdict_follows_the_violations() -> None:
    assert "Verified" in printed(outcome())
    assert "Verified" not in printed(outcome("GPU over"))
    assert "Verification FAILED:\n  GPU over" in printed(outcome("GPU over"))
    assert json.loads(as_json(outcome("GPU over")))["verification"] == {"passed": False, "violations": ["GPU over"]}


def many(pods: int) -> DemoOutcome:
    running = [replace(RUNNING, name=f"train-{number}") for number in range(pods - 10)]
    waiting = [replace(WAITING, name=f"too-big-{number}") for number in range(10)]
    return replace(outcome(), pods=(*running, *waiting))


@pytest.mark.parametrize("pods", [41, 800])
def test_many_pods_are_counted_by_kind(pods: int) -> None:
    lines = printed(many(pods)).splitlines()
    (kind,) = [line.split() for line in lines if line.startswith("more memory than any GPU has")]
    assert kind[-4:] == ["10", "0", "10", "0"]
    (waiting,) = [line for line in lines if "Pending" in line]
    assert waiting.startswith("too-big-0 and 9 more like it are Pending (more memory than any GPU has)")
    assert len(lines) < 40
    assert f"{pods - 10} of {pods} pods running" in "\n".join(lines)


def test_forty_pods_are_listed() -> None:
    lines = printed(many(40)).splitlines()
    assert sum(line.startswith("train-") for line in lines) == 31  # the last shows an annotation
