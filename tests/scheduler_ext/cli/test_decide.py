import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scheduler_ext.cli.decide import decide

CLUSTERS = Path(__file__).parents[2] / "data" / "decisions" / "cluster"


def run(tmp_path: Path, case: dict[str, Any], *arguments: str) -> Result:
    state, pod = tmp_path / "state.json", tmp_path / "pod.json"
    state.write_text(json.dumps(case["state"]))
    pod.write_text(json.dumps(case["pod"]))
    return CliRunner().invoke(decide, ["--state", str(state), "--pod", str(pod), *arguments])


def recorded(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((CLUSTERS / f"{name}.json").read_text())
    return case


def test_the_json_answer_has_node_devices_scores_and_failures(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("41-cores-100-exclusive"), "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "node": "n1",
        "devices_to_allocate": "GPU-n1-7,NVIDIA,1024,100:;",
        "scores": {"n1": 0.98437494},
        "failed": {},
    }


def test_a_pod_that_fits_nowhere_is_an_answer_too(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("65-full-nodes"), "--output", "json", "--node-names", "n1,n2,n3,nowhere")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["node"], answer["devices_to_allocate"]) == (0, None, "")
    assert answer["failed"]["nowhere"] == "node unregistered"


def test_policies_are_options(tmp_path: Path) -> None:
    case = recorded("04-node-spread-config")
    result = run(tmp_path, case, "--output", "json", "--node-scheduler-policy=spread", "--gpu-scheduler-policy=binpack")
    assert json.loads(result.stdout)["node"] == "n1"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu-scheduler-policy=bogus"], "unknown GPU policy 'bogus'"),
        (["--node-scheduler-policy=bogus"], "unknown node policy 'bogus'"),
    ],
)
def test_an_unknown_policy_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    result = run(tmp_path, recorded("05-gpu-spread-1gpu"), *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert sentence in result.stderr


def test_a_bad_weight_and_a_bad_quantity_are_one_sentence(tmp_path: Path) -> None:
    case = recorded("05-gpu-spread-1gpu")
    case["pod"]["metadata"]["annotations"] = {"hami.io/device-scoring-weights": "slot=1"}
    assert "slot, core and memory are all needed" in run(tmp_path, case).stderr
    case = recorded("05-gpu-spread-1gpu")
    case["pod"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "8Gi"
    assert "container c: nvidia.com/gpumem: 8589934592 MiB is more than any GPU has" in run(tmp_path, case).stderr
    case["pod"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "lots"
    assert "container c: nvidia.com/gpumem: " in run(tmp_path, case).stderr


def test_a_file_that_is_no_list_of_objects_is_one_sentence(tmp_path: Path) -> None:
    case = recorded("05-gpu-spread-1gpu")
    states: list[object] = [[], {}, {"items": [7]}, {"items": [{"kind": "Node", "metadata": {"name": 7}}]}]
    for state in states:
        result = run(tmp_path, {"state": state, "pod": case["pod"]})
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
