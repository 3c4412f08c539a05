import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scheduler_ext.cli.decide import decide
from tests.scheduler_ext.recorded import cluster as recorded


def run(tmp_path: Path, case: dict[str, Any], *arguments: str) -> Result:
    state, pod = tmp_path / "state.json", tmp_path / "pod.json"
    state.write_text(json.dumps(case["state"]))
    pod.write_text(json.dumps(case["pod"]))
    return CliRunner().invoke(decide, ["--state", str(state), "--pod", str(pod), *arguments])


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
    assert answer["error"] == "none of 4 nodes fits the pod"
    assert answer["failed"]["nowhere"] == "node unregistered"


def test_policies_are_options(tmp_path: Path) -> None:
    case = recorded("04-node-spread-config")
    result = run(tmp_path, case, "--output", "json", "--node-scheduler-policy=spread", "--gpu-scheduler-policy=binpack")
    assert json.loads(result.stdout)["node"] == "n1"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu-scheduler-policy=bogus"], "flag --gpu-scheduler-policy is 'bogus'; expected binpack, spread, "),
        (["--node-scheduler-policy=bogus"], "flag --node-scheduler-policy is 'bogus'; expected binpack, spread or fgd"),
    ],
)
def test_an_unknown_policy_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    result = run(tmp_path, recorded("05-gpu-spread-1gpu"), *arguments)
    assert result.exit_code == 2
    assert f"Error: {sentence}" in result.stderr


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


def test_a_pod_refused_by_its_quota_says_so_in_the_answer(tmp_path: Path) -> None:
    case = recorded("05-gpu-spread-1gpu")
    namespace = case["pod"]["metadata"].get("namespace", "default")
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": namespace}}
    case["state"]["items"].append({**quota, "spec": {"hard": {"limits.nvidia.com/gpumem": "1"}}})
    result = run(tmp_path, case, "--output", "json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["node"], answer["devices_to_allocate"]) == (0, None, "")
    assert answer["error"] == "none of 1 nodes fits the pod"
    assert "Quota" in answer["failed"]["n1"]
    case["state"]["items"][-1]["spec"]["scopes"] = ["PriorityClass"]
    assert json.loads(run(tmp_path, case, "--output", "json").stdout)["node"] == "n1"
    case["pod"]["spec"]["priorityClassName"] = "high"
    assert json.loads(run(tmp_path, case, "--output", "json").stdout)["node"] is None


@pytest.mark.parametrize(
    ("annotations", "limits", "sentence"),
    [
        ({"hami.io/device-scoring-weights": "slot=1"}, {}, "slot, core and memory are all needed"),
        ({}, {"nvidia.com/gpumem": "lots"}, "container c: nvidia.com/gpumem: "),
        ({}, {"nvidia.com/gpu": "-1"}, "container c: nvidia.com/gpu: "),
    ],
)
def test_a_request_nobody_can_read_is_json_too_but_fails(
    tmp_path: Path, annotations: dict[str, str], limits: dict[str, str], sentence: str
) -> None:
    case = recorded("05-gpu-spread-1gpu")
    case["pod"]["metadata"]["annotations"] = annotations
    case["pod"]["spec"]["containers"][0]["resources"]["limits"].update(limits)
    result = run(tmp_path, case, "--output", "json")
    answer = json.loads(result.stdout)
    assert sentence in answer.pop("error")
    assert answer == {"node": None, "devices_to_allocate": "", "scores": {}, "failed": {}}
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert sentence in result.stderr


def test_a_pod_that_asks_for_no_gpu_may_go_anywhere(tmp_path: Path) -> None:
    case = recorded("77-no-gpu")
    result = run(tmp_path, case, "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "node": "n1",
        "devices_to_allocate": "",
        "scores": {"n1": 0},
        "failed": {},
        "note": "the pod asks for no GPU: any node fits, and kube-scheduler chooses",
    }
    assert run(tmp_path, case).stdout.startswith("node     n1\n")


def test_a_single_node_is_a_state(tmp_path: Path) -> None:
    case = recorded("41-cores-100-exclusive")
    (node,) = (item for item in case["state"]["items"] if item["kind"] == "Node")
    assert json.loads(run(tmp_path, {**case, "state": node}, "--output", "json").stdout)["node"] == "n1"


def test_a_state_without_nodes_is_one_sentence(tmp_path: Path) -> None:
    state = {"apiVersion": "v1", "kind": "List", "items": []}
    result = run(tmp_path, {**recorded("41-cores-100-exclusive"), "state": state}, "--output", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "state.json: lists no node; write it with kubectl get nodes" in result.stderr


@pytest.mark.parametrize("broken", ["state", "pod"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "kubectl get"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"{", "neither JSON nor YAML"),
        (b"a: [", "neither JSON nor YAML"),
        (b"just words", "kubectl get"),
    ],
)
def test_a_missing_or_garbled_file_is_one_sentence(
    tmp_path: Path, broken: str, content: bytes | None, sentence: str
) -> None:
    case = recorded("41-cores-100-exclusive")
    files = {name: tmp_path / f"{name}.json" for name in ("state", "pod")}
    for name, file in files.items():
        file.write_text(json.dumps(case[name]))
    files[broken].unlink()
    if content is not None:
        files[broken].write_bytes(content)
    result = CliRunner().invoke(decide, ["--state", str(files["state"]), "--pod", str(files["pod"])])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert f"{files[broken]}: " in result.stderr
    assert sentence in result.stderr


def test_a_folder_and_standard_input_twice_are_one_sentence(tmp_path: Path) -> None:
    for arguments, sentence in (
        (["--state", str(tmp_path), "--pod", "-"], "cannot be read: Is a directory"),
        (["--state", "-", "--pod", "-"], "cannot both be standard input"),
    ):
        result = CliRunner().invoke(decide, arguments, input="{}")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert sentence in result.stderr


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        ({"kind": "Deployment", "spec": {}}, "holds a Deployment where one Pod is expected"),
        ({}, "holds an object without kind and spec, where one Pod is expected"),
        ({"kind": "Pod", "metadata": {"name": 7}}, "Expected `str`, got `int`"),
    ],
)
def test_a_pod_file_with_something_else_is_one_sentence(tmp_path: Path, pod: object, sentence: str) -> None:
    result = run(tmp_path, {"state": recorded("41-cores-100-exclusive")["state"], "pod": pod})
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert sentence in result.stderr


def test_topology_is_another_word_for_topology_aware(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("05-gpu-spread-1gpu"), "--gpu-scheduler-policy=topology")
    assert result.exit_code == 0
    assert "warning: --gpu-scheduler-policy: 'topology' is read as 'topology-aware'" in result.stderr


def test_explain_is_a_table_of_nodes_and_what_each_gpu_lacks(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("65-full-nodes"), "--explain", "--node-names", "n1,n2,nowhere")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert rows[-5:-1] == [
        "needs 10 % of cores, GPU-n1-1 has 5 free of 100",
        "needs 4 096 MiB, GPU-n1-0 has 0 free of 81 920",
        "n2 no container c asks for 2 GPUs with 4 096 MiB and 10 % of cores each; the node has 1 GPU",
        "nowhere no node unregistered",
    ]
    score = run(tmp_path, recorded("80-heterogeneous-nodes"), "--explain").stdout
    assert "n3     chosen   3.00 = 10 × (slots 0.10 + cores 0.10 + memory 0.10)" in score


def test_explain_in_json_holds_the_numbers_too(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("39-mem-one-over"), "--explain", "--output", "json")
    assert json.loads(result.stdout)["nodes"] == [
        {
            "node": "n1",
            "fits": False,
            "why": "container c asks for 1 GPU with 40 961 MiB",
            "reason": "1/1 CardInsufficientMemory",
            "gpus": [
                {
                    "uuid": "GPU-n1-0",
                    "reason": "CardInsufficientMemory",
                    "why": "needs 40 961 MiB, GPU-n1-0 has 40 960 free of 81 920",
                    "needed": 40961,
                    "free": 40960,
                    "total": 81920,
                    "unit": "MiB",
                }
            ],
        }
    ]
    fitting = run(tmp_path, recorded("80-heterogeneous-nodes"), "--explain", "--output", "json")
    assert json.loads(fitting.stdout)["nodes"][0] == {
        "node": "n3",
        "fits": True,
        "why": "3.00 = 10 × (slots 0.10 + cores 0.10 + memory 0.10)",
        "chosen": True,
        "score": {"total": 3, "slots": 0.1, "cores": 0.1, "memory": 0.1},
    }


def test_state_without_pod_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(decide, ["--state", str(tmp_path)])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "--pod is missing" in result.stderr
