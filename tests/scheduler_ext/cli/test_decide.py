import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from scheduler_ext.cli.decide import decide
from scheduler_ext.cli.state import read_state
from scheduler_ext.requests import RequestSettings
from tests.scheduler_ext.recorded import cluster as recorded


def run(tmp_path: Path, case: dict[str, Any], *arguments: str) -> Result:
    state, pod = tmp_path / "state.json", tmp_path / "pod.json"
    state.write_text(json.dumps(case["state"]))
    pod.write_text(json.dumps(case["pod"]))
    return CliRunner().invoke(decide, ["--state", str(state), "-f", str(pod), *arguments])


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
    assert (result.exit_code, answer["node"], answer["devices_to_allocate"]) == (1, None, "")
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
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_a_pod_refused_by_its_quota_says_so_in_the_answer(tmp_path: Path) -> None:
    case = recorded("05-gpu-spread-1gpu")
    namespace = case["pod"]["metadata"].get("namespace", "default")
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": namespace}}
    case["state"]["items"].append({**quota, "spec": {"hard": {"limits.nvidia.com/gpumem": "1"}}})
    result = run(tmp_path, case, "--output", "json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["node"], answer["devices_to_allocate"]) == (1, None, "")
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
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
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
        "note": "the pod asks for no GPU that TopoGPU gives out: kube-scheduler places it alone",
    }
    note = "the pod asks for no GPU that TopoGPU gives out: kube-scheduler places it alone"
    assert run(tmp_path, case).stdout == f"pod default/target: {note}\n"


@pytest.mark.parametrize(
    "manifest",
    [
        {"kind": "Pod", "metadata": {"name": "p"}},
        {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}},
        {"kind": "Deployment", "metadata": {"name": "p"}, "spec": {"template": {"spec": {}}}},
    ],
)
def test_a_pod_without_containers_is_no_pod(tmp_path: Path, manifest: dict[str, Any]) -> None:
    result = run(tmp_path, {**recorded("77-no-gpu"), "pod": manifest})
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("pod.json: the pod has no containers\n")


def test_a_single_node_is_a_state(tmp_path: Path) -> None:
    case = recorded("41-cores-100-exclusive")
    (node,) = (item for item in case["state"]["items"] if item["kind"] == "Node")
    assert json.loads(run(tmp_path, {**case, "state": node}, "--output", "json").stdout)["node"] == "n1"


def test_a_state_without_nodes_is_one_sentence(tmp_path: Path) -> None:
    state = {"apiVersion": "v1", "kind": "List", "items": []}
    result = run(tmp_path, {**recorded("41-cores-100-exclusive"), "state": state}, "--output", "json")
    assert (result.exit_code, result.stdout) == (2, "")
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
    result = CliRunner().invoke(decide, ["--state", str(files["state"]), "-f", str(files["pod"])])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"{files[broken]}: " in result.stderr
    assert sentence in result.stderr


def test_a_folder_and_standard_input_twice_are_one_sentence(tmp_path: Path) -> None:
    for arguments, sentence in (
        (["--state", str(tmp_path), "-f", "-"], "cannot be read: Is a directory"),
        (["--state", "-", "-f", "-"], "cannot both be standard input"),
    ):
        result = CliRunner().invoke(decide, arguments, input="{}")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert sentence in result.stderr


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        ({"kind": "Deployment", "spec": {}}, "holds Deployment, which has no pods; give a Pod as kubectl get"),
        ({"kind": "Service", "spec": {}}, "holds Service, which has no pods"),
        ({"kind": "List", "items": []}, "holds no object; give a Pod"),
        ({}, "holds an object without kind"),
        ({"kind": "Job", "spec": {"parallelism": -1, "template": {"spec": {}}}}, "spec.parallelism: expected a number"),
        ({"kind": "Deployment", "spec": {"replicas": 1001, "template": {"spec": {}}}}, "more than 1000 pods"),
        ({"kind": "Deployment", "spec": {"replicas": 10**30, "template": {"spec": {}}}}, "more than 1000 pods"),
        ({"kind": "Pod", "metadata": {"name": 7}}, "Expected `str`, got `int`"),
    ],
)
def test_a_pod_file_with_something_else_is_one_sentence(tmp_path: Path, pod: object, sentence: str) -> None:
    result = run(tmp_path, {"state": recorded("41-cores-100-exclusive")["state"], "pod": pod})
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert sentence in result.stderr


def test_topology_is_another_word_for_topology_aware(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("05-gpu-spread-1gpu"), "--gpu-scheduler-policy=topology")
    assert result.exit_code == 0
    assert "warning: --gpu-scheduler-policy: 'topology' is read as 'topology-aware'" in result.stderr


def test_explain_is_a_table_of_nodes_and_what_each_gpu_lacks(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("65-full-nodes"), "--explain", "--node-names", "n1,n2,nowhere")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert rows[-4:] == [
        "GPU 1: needs 10 % of cores, 5 free of 100",
        "GPU 0: needs 4 096 MiB, 0 free of 81 920",
        "n2 no container c asks for 2 GPUs with 4 096 MiB and 10 % of cores each; the node has 1 GPU",
        "nowhere no offers no GPU",
    ]
    score = run(tmp_path, recorded("80-heterogeneous-nodes"), "--explain").stdout
    assert "n3    chosen  in use: replicas 10 %, cores 10 %, memory 10 %; score 3.00" in score


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
                    "why": "GPU 0: needs 40 961 MiB, 40 960 free of 81 920",
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
        "why": "in use: replicas 10 %, cores 10 %, memory 10 %; score 3.00",
        "chosen": True,
        "score": {"total": 3, "slots": 0.1, "cores": 0.1, "memory": 0.1},
    }


def test_state_without_pod_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(decide, ["--state", str(tmp_path)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--filename is missing" in result.stderr


def test_decide_without_a_cluster_is_refused_in_a_sentence() -> None:
    result = CliRunner().invoke(decide, [])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: --state is missing; give both --state and --filename\n"


def asked(tmp_path: Path, manifest: str, *arguments: str, name: str = "80-heterogeneous-nodes") -> Result:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(recorded(name)["state"]))
    return CliRunner().invoke(decide, ["--state", str(state), "-f", "-", *arguments], input=manifest)


def shape(**limits: int) -> str:
    return json.dumps(
        {"containers": [{"name": "c", "resources": {"limits": {f"nvidia.com/{k}": v for k, v in limits.items()}}}]}
    )


def test_people_read_gpus_by_index_and_model_and_why(tmp_path: Path) -> None:
    pod = f"{{kind: Pod, metadata: {{name: p, namespace: ml}}, spec: {shape(gpu=2, gpumem=30000, gpucores=20)}}}"
    result = asked(tmp_path, pod)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "pod ml/p fits on node n1",
        "  container c gets GPUs 0–1 (H100 80GB HBM3), 30 000 MiB and 20 % of cores each",
        "  node: policy binpack takes the fullest node on which the pod fits: n1 (5 % used), n2 (2 % used)",
        "  GPUs: policy spread takes the emptiest GPUs that fit",
        "  it does not fit on 1 other node; --explain shows why",
    ]


def test_reasons_are_grouped_with_the_nearest_node(tmp_path: Path) -> None:
    result = run(tmp_path, recorded("65-full-nodes"))
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.splitlines() == [
        "pod default/target fits on none of 3 nodes",
        "  1 node (n1): too little free memory, too few free cores",
        "    nearest is n1: GPU 0: needs 4 096 MiB, 0 free of 81 920",
        "  2 nodes (n2, n3): fewer GPUs than asked for",
        "    nearest is n2: 1 GPU, 2 asked for",
    ]


WORKLOADS = [
    ("apps/v1", "Deployment", "{replicas: 3, template: {spec: SHAPE}}", ["w-0", "w-1", "w-2"]),
    ("apps/v1", "StatefulSet", "{template: {spec: SHAPE}}", ["w"]),
    ("apps/v1", "ReplicaSet", "{replicas: 0, template: {spec: SHAPE}}", []),
    ("apps/v1", "DaemonSet", "{template: {metadata: null, spec: SHAPE}}", ["w"]),
    ("v1", "ReplicationController", "{replicas: 2, template: {spec: SHAPE}}", ["w-0", "w-1"]),
    ("v1", "PodTemplate", "null", ["w"]),
    ("batch/v1", "Job", "{parallelism: 2, template: {spec: SHAPE}}", ["w-0", "w-1"]),
    ("batch/v1", "Job", "{parallelism: 4, completions: 1, template: {spec: SHAPE}}", ["w"]),
    ("batch/v1", "CronJob", "{jobTemplate: {spec: {parallelism: 2, template: {spec: SHAPE}}}}", ["w-0", "w-1"]),
    ("argoproj.io/v1alpha1", "Rollout", "{replicas: 2, template: {spec: SHAPE}}", ["w-0", "w-1"]),
]


@pytest.mark.parametrize(("version", "kind", "spec", "names"), WORKLOADS)
def test_the_pods_of_every_workload_are_placed(
    tmp_path: Path, version: str, kind: str, spec: str, names: list[str]
) -> None:
    template = f", template: {{spec: {shape(gpu=1, gpumem=1000)}}}" if kind == "PodTemplate" else ""
    head = f"apiVersion: {version}, kind: {kind}, metadata: {{name: w, namespace: ml}}"
    manifest = f"{{{head}, spec: {spec.replace('SHAPE', shape(gpu=1, gpumem=1000))}{template}}}"
    beside = (
        f"{manifest}\n---\nkind: Pod\nmetadata: {{name: plain}}\nspec: {shape(gpu=1, gpumem=1)}\n---\nkind: Service\n"
    )
    result = asked(tmp_path, beside, "-o", "json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    pods = [each["pod"] for each in answer["pods"]] if names else ["default/plain"]
    assert pods == [*(f"ml/{name}" for name in names), "default/plain"]


@pytest.mark.parametrize("form", ["state", "snapshot"])
def test_each_pod_is_placed_beside_those_before_it(tmp_path: Path, form: str) -> None:
    manifest = (
        f"{{kind: Deployment, metadata: {{name: w}}, spec: {{replicas: 20, template: {{spec: {shape(gpu=1)}}}}}}}"
    )
    case, pods = recorded("80-heterogeneous-nodes"), tmp_path / "pods.yaml"
    pods.write_text(manifest)
    file = tmp_path / "cluster.json"
    if form == "state":
        file.write_text(json.dumps(case["state"]))
    else:
        ledger, _ = read_state(case["state"], "state", RequestSettings())
        file.write_bytes(msgspec.json.encode(ledger.snapshot()))
    result = CliRunner().invoke(decide, [f"--{form}", str(file), "-f", str(pods), "--output", "json"])
    devices = [each["devices_to_allocate"] for each in json.loads(result.stdout)["pods"]]
    placed = [device for device in devices if device]
    assert result.exit_code == 1
    assert len(set(placed)) == len(placed) == 8
    assert devices[: len(placed)] == placed
    people = CliRunner().invoke(decide, [f"--{form}", str(file), "-f", str(pods)])
    assert (people.exit_code, people.stdout.splitlines()[-1]) == (1, "8 of 20 pods fit")


def test_one_bad_pod_of_several_is_named_and_the_others_are_answered(tmp_path: Path) -> None:
    manifest = "\n---\n".join(
        f"{{kind: Pod, metadata: {{name: p{percent}}}, spec: {shape(gpu=1, **{'gpumem-percentage': percent})}}}"
        for percent in (10, 150)
    )
    result = asked(tmp_path, manifest)
    assert result.exit_code == 2
    assert "pod default/p10 fits on node n3" in result.stdout
    sentence = "container c: nvidia.com/gpumem-percentage: must be an integer between 0 and 100, found 150"
    assert f"pod default/p150: {sentence}" in result.stdout
    assert result.stderr == f"Error: pod default/p150: {sentence}\n"


def test_a_node_that_offers_nothing_is_told_once(tmp_path: Path) -> None:
    case = recorded("65-full-nodes")
    nodes = [item for item in case["state"]["items"] if item["kind"] == "Node"]
    nodes[0]["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "garbage"
    result = run(tmp_path, case)
    assert result.stderr == ""
    assert (result.stdout.count("n1"), result.exit_code) == (1, 1)
