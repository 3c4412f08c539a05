"""Decisions on JSON lines, as a program that replays clusters asks for them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from simulation.replay_command import replay
from tests.scheduler_ext import recorded

GPU = {"id": "G0", "memory": 16384, "numa": 0, "count": 10, "cores": 100, "type": "NVIDIA A30", "health": True}
SINGLE: dict[str, Any] = {
    "devices": [GPU, {**GPU, "id": "G1", "used": 1, "used_memory": 15000, "used_cores": 10}],
    "pair_scores": {},
    "annotations": {},
    "containers": [{"gpu": 1, "gpumem": 2000, "gpucores": 20}, {}],
    "quota_memory": None,
    "quota_cores": None,
    "cordon": "",
}


def cluster(name: str, **changes: object) -> dict[str, Any]:
    case = recorded.cluster(name)
    return {key: case[key] for key in ("state", "pod", "node_names", "config")} | changes


def replayed(*lines: object, arguments: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The answers to lines that are JSON values, or bytes as they stand."""
    text = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    result = CliRunner().invoke(replay, arguments, input=text)
    answers = [json.loads(answer) for answer in result.stdout.splitlines()]
    unreadable = any(answer.keys() == {"error"} for answer in answers)
    fit = all(answer.get("node") or answer.get("fit") for answer in answers)
    assert (result.exit_code, result.stderr) == (2 if unreadable else 0 if fit else 1, "")
    return answers


def test_a_cluster_line_is_answered_with_node_devices_scores_failures_and_error() -> None:
    assert replayed(cluster("41-cores-100-exclusive"), cluster("39-mem-one-over")) == [
        {
            "node": "n1",
            "devices_to_allocate": "GPU-n1-7,NVIDIA,1024,100:;",
            "scores": {"n1": 0.98437494},
            "failed": {},
            "error": None,
        },
        {
            "node": None,
            "devices_to_allocate": None,
            "scores": {},
            "failed": {"n1": "1/1 CardInsufficientMemory"},
            "error": None,
        },
    ]


def test_a_single_node_line_is_answered_with_the_keys_of_the_record() -> None:
    too_large = {**SINGLE, "containers": [{"gpu": 2, "gpumem": 2000}]}
    refused = {"fit": False, "devices_to_allocate": "", "node_score": 0, "effective": ""}
    assert replayed(SINGLE, too_large, {**SINGLE, "containers": [{}]}) == [
        {
            "fit": True,
            "reason": "",
            "devices_to_allocate": "G0,NVIDIA,2000,20:;;",
            "node_score": 5.5776367,
            "effective": "G0:2000:20:1 ",
        },
        {**refused, "reason": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"},
        {**refused, "reason": "NOREQ"},
    ]


def test_a_request_nobody_can_read_is_refused_in_either_form() -> None:
    weights = {"hami.io/device-scoring-weights": "slot=1"}
    case = cluster("41-cores-100-exclusive")
    case["pod"]["metadata"]["annotations"] = weights
    single, whole = replayed({**SINGLE, "annotations": weights}, case)
    assert single["reason"] == "ERR"
    assert (whole["node"], "slot, core and memory are all needed" in whole["error"]) == (None, True)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"nonsense", "JSON is malformed"),
        (b"\xff\xfe", "JSON is malformed"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"devices":' + b"[" * 100_000, "nested too deeply"),
        ({}, "the line has neither state and pod nor devices and containers"),
        ([1], "Expected `object`, got `array`"),
        ({**SINGLE, "devices": [{**GPU, "memory": 10**40}]}, "$.devices[0].memory"),
        ({"devices": []}, "missing required field `containers`"),
        (cluster("41-cores-100-exclusive", pod={"kind": "Node"}), "pod: holds a Node where one Pod is expected"),
        (cluster("41-cores-100-exclusive", state=7), "state: no list of objects"),
        (
            cluster("41-cores-100-exclusive", config={"gpuSchedulerPolicy": "bogus"}),
            "config.gpuSchedulerPolicy: unknown GPU policy 'bogus'",
        ),
    ],
)
def test_a_line_nobody_can_read_is_answered_with_a_sentence_and_the_next_one_is_read(
    line: object, sentence: str
) -> None:
    bad, good = replayed(line, b"", SINGLE)
    assert bad.keys() == {"error"}
    assert sentence in bad["error"]
    assert good["fit"]


def test_the_configuration_of_a_line_goes_before_the_flags() -> None:
    case = cluster("40-mem-default-config")
    flags = ("--default-mem=7000", "--default-cores=40")
    first, second = replayed(case, {**case, "config": {"memoryFactor": 2, "defaultCores": 10}}, arguments=flags)
    assert first["devices_to_allocate"] == "GPU-n1-7,NVIDIA,5000,30:;"
    assert second["devices_to_allocate"] == "GPU-n1-7,NVIDIA,7000,10:;"


def test_input_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simulation", "replay"]
    with (tmp_path / "only-written").open("wb") as stdin:
        result = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "Error: standard input cannot be read: Bad file descriptor\n"


def test_each_line_is_answered_before_the_next_one_comes() -> None:
    line = json.dumps(SINGLE).encode() + b"\n"
    command = [sys.executable, "-m", "simulation", "replay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["fit"]
        process.stdin.close()
        assert process.wait() == 0
