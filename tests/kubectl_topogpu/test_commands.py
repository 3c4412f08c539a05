"""The commands on files, as people run them."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner, Result

from kubectl_topogpu.cli import main
from proto.annotations import keys
from scheduler_ext.membership import KUEUE_GROUP, KUEUE_SIZE
from tests.builders import as_json, container, pod
from tests.scheduler_ext.recorded import cluster

COMMANDS = [
    ["top"],
    ["top", "--level", "nodes"],
    ["top", "--level", "gpus"],
    ["who"],
    ["who", "n1"],
    ["who", "n1/0"],
    ["who", "target"],
    ["why", "target"],
    ["fit", "--memory", "1000"],
    ["topo", "n1"],
    ["topo"],
    ["waste"],
    ["frag"],
]


def state_of(name: str) -> dict[str, Any]:
    """A recorded cluster and the pod that was asked about in it."""
    case = cluster(name)
    pod = {"kind": "Pod", **case["pod"]}
    pod["metadata"].setdefault("namespace", "default")
    return {"kind": "List", "items": [*case["state"]["items"], pod]}


def run(*arguments: str, state: dict[str, Any] | None = None) -> Result:
    text = json.dumps(state_of("65-full-nodes") if state is None else state)
    return CliRunner().invoke(main, [*arguments, "--state", "-"], input=text)


def said(*arguments: str, state: dict[str, Any] | None = None) -> str:
    result = run(*arguments, state=state)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("output", ["text", "wide", "json", "yaml", "csv", "name"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_answers_in_every_form(command: list[str], output: str) -> None:
    if (command, output) == (["frag"], "name"):
        return  # it is about no object
    text = said(*command, "-o", output)
    match output:
        case "name":
            assert all(line.startswith(("node/", "pod/")) for line in text.splitlines())
        case "json":
            assert isinstance(json.loads(text), list | dict)
        case "yaml":
            assert yaml.safe_load(text) == json.loads(said(*command, "-o", "json"))
        case "csv":
            rows = list(csv.reader(StringIO(text)))
            assert len({len(row) for row in rows} or {0}) <= 1
        case _:
            assert text.strip()


def test_top_shows_nodes_gpus_and_the_pods_on_them() -> None:
    text = said("top")
    assert "default/a" in text
    assert text.splitlines()[-2].startswith("3 nodes, ")
    assert text.splitlines()[-1] == "1 pod waits for GPUs: kubectl topogpu why -A"
    rows = json.loads(said("top", "-o", "json"))
    (held,) = [row for row in rows if row["pod"] == "default/a"]
    assert (held["node"], held["memory_mib"] > 0) == ("n1", True)


def test_who_finds_the_same_by_node_index_uuid_and_pod() -> None:
    rows = json.loads(said("who", "default/a", "-o", "json"))
    (row,) = rows
    by_index = json.loads(said("who", f"{row['node']}/{row['gpu']}", "-o", "json"))
    by_uuid = json.loads(said("who", row["uuid"], "-o", "json"))
    assert row in by_index
    assert by_index == by_uuid


def test_why_tells_what_is_missing_and_which_pods_would_have_to_go() -> None:
    text = said("why", "target")
    first = "waits: too little free memory, too few free cores (on n1); fewer GPUs than asked for (on 2 nodes)"
    assert f"pod default/target {first}" in text
    assert "nearest is n2: 1 GPU, 2 asked for" in text
    assert "GPU 0: needs 4 096 MiB, 0 free of 81 920" in text
    assert "on n1 without 2 pods: default/a, default/b" in text


def test_why_names_the_quota_and_what_it_has_left() -> None:
    text = said("why", "target", state=state_of("72-quota-memory"))
    assert "needs 8 192 MiB, the namespace's quota has 5 000 left of 65 000" in text
    assert "The ResourceQuota of the namespace has to grow" in text


def test_why_says_how_a_pod_that_asks_for_parts_of_several_gpus_would_fit() -> None:
    state = state_of("24-topology-binpack-chain")
    for item in state["items"]:
        if item["kind"] == "Node":
            item["metadata"]["annotations"][keys.NODE_LIMITS] = "hami-core"
        elif item["metadata"]["name"] == "target":
            limits = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1000"}
            item["spec"]["containers"][0]["resources"] = {"limits": limits}
    text = said("why", "target", state=state)
    assert "now, if it asked for at most 1 GPU for a container instead of 2" in text
    assert "Ask for whole GPUs or for one GPU in each container, or add unenforced to limits" in text


def test_amounts_that_round_to_the_same_are_told_apart() -> None:
    assert "GPU 0: needs 40 961 MiB, 40 960 free of 81 920" in said("why", "target", state=state_of("39-mem-one-over"))


def test_why_says_when_gpus_are_not_what_a_pod_waits_for() -> None:
    text = said("why", "target", state=state_of("80-heterogeneous-nodes"))
    tried = "waits for scheduler hami-scheduler, which has not tried it"
    assert f"{tried}; its GPUs fit on 3 nodes now, best on n3" in text


def test_why_tells_of_a_placed_pod_its_gpus_and_the_other_nodes() -> None:
    state = state_of("80-heterogeneous-nodes")
    (placed,) = [item for item in state["items"] if item["kind"] == "Pod" and item["metadata"]["name"] == "a"]
    assert "though it asks for no GPU" in said("why", "a", state=state)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192, "nvidia.com/gpucores": 10}
    placed["spec"]["containers"] = [{"name": "c", "resources": {"limits": limits}}]
    text = said("why", "a", state=state)
    assert "pod default/a is on node n1 with GPU 0 (H100 80GB HBM3): 8.0 GiB, 10 %" in text
    assert "Why this node: policy binpack takes the fullest node" in text
    (own,) = [line.split() for line in text.splitlines() if line.startswith("  *  n1 ")]
    assert own == ["*", "n1", "0", "%"]
    assert "Why these GPUs: policy spread takes the emptiest GPUs that fit" in text


def test_fit_counts_and_says_why_not() -> None:
    answer = json.loads(said("fit", "--gpus", "2", "--memory", "99999", "-o", "json"))
    assert answer["pods"] == 0
    assert "no pod of this shape fits" in said("fit", "--gpus", "2", "--memory", "99999")


@pytest.mark.parametrize(
    ("typed", "same_as"),
    [("8Gi", "8192"), ("8192Mi", "8192"), ("8 GiB", "8192"), ("8192MiB", "8192")],
)
def test_memory_is_read_as_kubernetes_writes_it(typed: str, same_as: str) -> None:
    state = state_of("80-heterogeneous-nodes")
    assert said("fit", "--memory", typed, state=state) == said("fit", "--memory", same_as, state=state)


@pytest.mark.parametrize("typed", ["8Qi", "8k", "8192.0", "-1", "0", "101%", "", "1e999", "½Gi", "9999999999999999999"])
def test_what_is_no_amount_of_memory_is_refused(typed: str) -> None:
    result = run("fit", "--memory", typed)
    assert (result.exit_code, "Invalid value for '--memory'" in result.stderr) == (2, True)


def test_percentages_are_shares_of_a_gpu() -> None:
    state = state_of("80-heterogeneous-nodes")
    halves, wholes = (json.loads(said("fit", "--memory", each, "-o", "json", state=state)) for each in ("50%", "100%"))
    assert halves["pods"] > wholes["pods"] > 0
    assert said("fit", "--cores", "20%", state=state) == said("fit", "--cores", "20", state=state)


def labelled() -> dict[str, Any]:
    state = state_of("80-heterogeneous-nodes")
    for item in state["items"]:
        name = item["metadata"]["name"]
        item["metadata"]["labels"] = {"pool": "a" if name in ("n1", "n2") else "b", "app": name}
    return state


@pytest.mark.parametrize("command", [["top"], ["top", "--level", "nodes"], ["fit"], ["waste"]], ids=" ".join)
def test_a_selector_selects_nodes_where_nodes_are_shown(command: list[str]) -> None:
    def selected(*options: str) -> set[str]:
        return set(said(*command, *options, "-o", "name", state=labelled()).split())

    assert selected() == {"node/n1", "node/n2", "node/n3"}
    assert selected("-l", "pool=a") == {"node/n1", "node/n2"}
    assert selected("-l", "pool notin (a)") == {"node/n3"}


def test_top_names_what_keeps_pods_away_from_a_node() -> None:
    state = labelled()
    specs = {item["metadata"]["name"]: item.setdefault("spec", {}) for item in state["items"] if item["kind"] == "Node"}
    own, other = ({"key": key, "effect": "NoSchedule"} for key in ("nvidia.com/gpu", "team"))
    specs["n1"].update(unschedulable=True, taints=[own])
    specs["n2"].update(taints=[own, other])
    specs["n3"].update(taints=[own])
    rows = json.loads(said("top", "--level", "nodes", "-o", "json", state=state))
    bars = {"n1": "cordoned", "n2": "taint team:NoSchedule", "n3": None}
    assert {row["node"]: row["barred_by"] for row in rows} == bars
    first, second, third = said("top", "--level", "nodes", "-o", "wide", state=state).splitlines()[1:4]
    assert ("0 free, cordoned" in first, "free, taint team:NoSchedule" in second) == (True, True)
    assert not {"taint", "cordoned", "not serving"} & {*third.split()}


def test_a_selector_selects_pods_where_pods_are_shown() -> None:
    assert said("who", "-A", "-l", "app=a", "-o", "name", state=labelled()) == "pod/a\n"
    assert said("who", "-A", "-l", "app=none", state=labelled()) == "no pod of any namespace holds a GPU\n"
    assert said("why", "-l", "app=target", "-o", "name", state=labelled()) == "pod/target\n"
    assert "selects among" in run("why", "target", "-l", "app=a", state=labelled()).stderr
    assert "unable to parse requirement" in run("top", "-l", "a b").stderr


@pytest.mark.parametrize("command", [["top"], ["top", "--level", "nodes"], ["fit"], ["waste"]], ids=" ".join)
def test_rows_are_sorted_by_a_column_numbers_from_the_largest(command: list[str]) -> None:
    key = {"fit": "pods", "waste": "idle-mem"}.get(command[0], "free")
    rows = json.loads(said(*command, "--sort-by", key, "-o", "json", state=labelled()))
    rows = rows["nodes"] if isinstance(rows, dict) else rows
    free = {
        row["node"]: row["free_gpus"]
        for row in json.loads(said("top", "--level", "nodes", "-o", "json", state=labelled()))
    }
    order = [free[row["node"]] for row in rows]
    assert order == sorted(order, reverse=True)
    assert len(set(order)) > 1


def test_a_column_that_is_not_there_is_answered_with_those_that_are() -> None:
    result = run("top", "--sort-by", "memroy_mib")
    assert (result.exit_code, "did you mean memory_mib? possible are node, gpus, free_gpus" in result.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tpo"], "No such command 'tpo'. Did you mean topo?"),
        (["fit", "--memroy", "1"], "Did you mean '--memory'?"),
        (["frag", "-o", "name"], "'name' is not one of"),
        (["top", "-i", "-o", "json"], "-i is for a terminal"),
        (["top", "-i"], "-i needs a terminal: standard output is none"),
    ],
)
def test_what_is_misspelt_ends_with_status_2(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, sentence in result.stderr) == (2, True)


def test_topo_draws_each_pair_once(tmp_path: Path) -> None:
    state = state_of("24-topology-binpack-chain")
    drawing = tmp_path / "n1.svg"
    assert "NV6" in said("topo", "n1", "--svg", str(drawing), state=state)
    svg = ElementTree.fromstring(drawing.read_text())
    kinds = [element.tag.rpartition("}")[2] for element in svg.iter()]
    assert (kinds.count("circle"), kinds.count("line")) == (8, 28)
    assert len(json.loads(said("topo", "n1", "-o", "json", state=state))) == 28


def test_topo_without_a_node_counts_the_whole_nodes_of_each_clique() -> None:
    state = state_of("24-topology-binpack-chain")
    nodes = [each for each in state["items"] if each["kind"] == "Node"]
    for number, node in enumerate(nodes):
        node["metadata"]["labels"] = {keys.NODE_CLIQUE: f"fabric.{number % 2}", "topology.kubernetes.io/zone": "z"}
    rows = json.loads(said("topo", "-o", "json", state=state))
    assert [(row["level"], row["domain"]) for row in rows] == [
        ("zone", "z"),
        *(("clique", f"fabric.{number}") for number in range(min(len(nodes), 2))),
    ]
    assert sum(row["nodes"] for row in rows[1:]) == rows[0]["nodes"] == len(nodes)
    assert "clique fabric.0: " in said("topo", nodes[0]["metadata"]["name"], state=state)
    assert "No node with GPUs has a label" in said("topo", state=state_of("24-topology-binpack-chain"))
    assert json.loads(said("top", "--level", "nodes", "-o", "json", state=state))[0]["domains"] is not None


def test_why_says_that_not_all_of_a_group_fit_in_one_clique() -> None:
    state = state_of("24-topology-binpack-chain")
    nodes = [each for each in state["items"] if each["kind"] == "Node"]
    for node in nodes:
        node["metadata"]["labels"] = {keys.NODE_CLIQUE: "fabric.1"}
    annotations = {KUEUE_SIZE: "50", keys.REQUIRED_TOPOLOGY: keys.NODE_CLIQUE}
    for name in ("g-0", "g-1"):
        member = pod(container(gpu=1), name=name, labels={KUEUE_GROUP: "g"}, annotations=annotations)
        state["items"].append(as_json(member))
    words = said("why", "g-0", state=state)
    lack = "needs room for 50 in one clique; the largest free clique has room for 7"
    assert f"pod default/g-0 waits: group default/g {lack}\n" in words
    assert "GPUs are not what it waits for" not in words


def test_a_drawing_is_xml_whatever_a_pod_is_called(tmp_path: Path) -> None:
    state = state_of("24-topology-binpack-chain")
    state["items"] = json.loads(json.dumps(state["items"]).replace('"n1"', '"n\\u001b1<&"'))
    drawing = tmp_path / "n1.svg"
    said("topo", "n\x1b1<&", "--svg", str(drawing), state=state)
    assert ElementTree.fromstring(drawing.read_text()).attrib["aria-label"] == "n1<&: 8 GPUs"


def test_a_node_with_thousands_of_gpus_offers_none_and_pods_beyond_a_thousand_are_not_counted() -> None:
    gpus = [
        {"id": f"GPU-{at}", "index": at, "devmem": 10_000, "devcore": 100, "type": "NVIDIA A", "health": True}
        for at in range(2000)
    ]
    gpus[0]["count"] = 10_000
    registered = {"name": "n1", "annotations": {keys.NODE_REGISTER: json.dumps(gpus)}}
    status = {"allocatable": {"nvidia.com/gpu": "10000"}}
    state = {"kind": "List", "items": [{"kind": "Node", "metadata": registered, "status": status}]}
    assert "lists 2000 GPUs; at most 256 are read" in said("top", state=state)
    assert "no pod of this shape fits" in said("fit", state=state)
    registered["annotations"] = {keys.NODE_REGISTER: json.dumps(gpus[:1])}
    text = said("fit", "--memory", "1", state=state)
    assert "room for 1 000 pods" in text
    assert "more than 1 000 pods of a node are not counted" in text


def test_waste_and_frag_add_up() -> None:
    rows = json.loads(said("waste", "-o", "json"))
    gpus = json.loads(said("top", "--level", "gpus", "-o", "json"))
    free = sum(gpu["memory_mib"] - gpu["memory_used_mib"] for gpu in gpus)
    assert sum(r["idle_memory_mib"] + r["unused_memory_mib"] + r["stranded_memory_mib"] for r in rows) == free
    whole = {row["gpus"]: row["whole_pods"] for row in json.loads(said("frag", "-o", "json"))}
    assert whole[1] == sum(row["free_gpus"] for row in json.loads(said("top", "--level", "nodes", "-o", "json")))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["who", "nothing"],
            "'nothing' is not a node with GPUs, a GPU (node/index or UUID), or a pod of namespace default",
        ),
        (["why", "nothing"], "there is no pod default/nothing"),
        (["topo", "nothing"], "node nothing has no GPUs of TopoGPU or HAMi"),
        (["top", "nothing"], "node nothing has no GPUs of TopoGPU or HAMi"),
    ],
)
def test_what_is_not_there_is_named(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"items": []}', '{"items": [{"kind": "Node", "spec": 1, "metadata": 3}]}']
)
def test_a_file_that_is_not_what_kubectl_prints_is_refused_in_a_sentence(text: str) -> None:
    result = CliRunner().invoke(main, ["top", "--state", "-"], input=text)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: -: ")
    assert "Traceback" not in result.output


def with_hostile_words() -> dict[str, Any]:
    words = "[red]H100[/red] [/]\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    state = state_of("65-full-nodes")
    for item in state["items"]:
        if item["kind"] == "Node":
            register = item["metadata"]["annotations"]
            register[keys.NODE_REGISTER] = register[keys.NODE_REGISTER].replace(
                "NVIDIA H100 80GB HBM3", json.dumps(f"NVIDIA {words}")[1:-1]
            )
        else:
            condition = {"type": "PodScheduled", "status": "False", "message": words}
            item.setdefault("status", {})["conditions"] = [condition]
    return state


@pytest.mark.parametrize("output", ["text", "wide", "csv"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_other_peoples_words_are_neither_markup_nor_obeyed_by_a_terminal(command: list[str], output: str) -> None:
    text = said(*command, "-o", output, state=with_hostile_words())
    assert [each for each in text if not each.isprintable() and each != "\n"] == []


def test_other_peoples_words_are_shown_as_they_are() -> None:
    assert "[red]H100[/red] [/]]0;owned" in said("who", "n1", state=with_hostile_words())


def test_a_terminal_that_has_ascii_alone_is_shown_the_same_in_ascii() -> None:
    text = json.dumps(state_of("65-full-nodes"))
    result = CliRunner(charset="ascii").invoke(main, ["top", "--state", "-"], input=text)
    assert result.exit_code == 0, result.exception
    assert "#####....." in result.stdout
    assert "\u2588" not in result.stdout


def test_a_name_that_is_a_formula_stays_text_in_a_spreadsheet() -> None:
    state = state_of("65-full-nodes")
    for item in state["items"]:
        if item["kind"] == "Pod":
            item["metadata"]["namespace"] = "-ns"
    assert "'-ns/a" in said("top", "-o", "csv", state=state)


def placed_with(annotations: dict[str, str]) -> dict[str, Any]:
    """The pod `placed`, with these annotations, has two GPUs of its node."""
    state = state_of("24-topology-binpack-chain")
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000}
    uuids = [row["uuid"] for row in json.loads(said("top", "--level", "gpus", "-o", "json", state=state))]
    allocated = "".join(f"{uuid},NVIDIA,1000,0:" for uuid in uuids[:2]) + ";"
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "placed",
            "uid": "placed",
            "annotations": {keys.DEVICES_ALLOCATED: allocated, **annotations},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }
    return {**state, "items": [*state["items"], pod]}


def test_why_explains_the_gpus_of_a_pod_on_a_cordoned_node() -> None:
    state = placed_with({})
    for node in state["items"]:
        if node["kind"] == "Node" and node["metadata"]["name"] == "n1":
            node["spec"] = {"unschedulable": True}
    text = said("why", "placed", state=state)
    assert "Why these GPUs: " in text
    assert "GPU 0–1 are connected by NV6" in text


@pytest.mark.parametrize("policy", ["binpack", "spread", "fgd"])
def test_why_explains_a_node_by_each_node_policy(policy: str) -> None:
    text = said("why", "placed", state=placed_with({keys.NODE_POLICY: policy}))
    assert f"Why this node: policy {policy} takes" in text


def test_why_names_a_policy_that_is_misspelt_also_of_a_placed_pod() -> None:
    text = said("why", "placed", state=placed_with({keys.GPU_POLICY: "toplogy-aware"}))
    assert "unknown GPU policy 'toplogy-aware'" in text


@pytest.mark.parametrize("policy", ["binpack", "spread", "topology-aware", "mutex", "numa", "fgd", "binpack,numa"])
def test_why_explains_gpus_by_each_gpu_policy_and_tells_how_they_are_connected(policy: str) -> None:
    text = said("why", "placed", state=placed_with({keys.GPU_POLICY: policy}))
    assert f"policy {policy} " in text
    assert "GPU 0–1 are connected by NV6: sum of pair scores 600" in text


def test_why_names_the_smaller_request_that_would_fit() -> None:
    assert "now, if it asked for at most 40 960 MiB of each GPU instead of 40 961 MiB" in said(
        "why", "target", state=state_of("39-mem-one-over")
    )
    text = said("why", "target", "-o", "json", state=state_of("39-mem-one-over"))
    assert json.loads(text)["smaller"] == {"amount": "memory", "at_most": 40960, "asked": 40961}


def test_what_is_in_use_is_not_known_from_a_file_and_that_is_said() -> None:
    text = said("top", "--used")
    assert "! what is in use on node n1 is not known: no pod of the node daemon runs there" in text
    assert "?, ? %" in text
    assert json.loads(said("waste", "--used", "-o", "json"))[0]["held_not_in_use_mib"] is None


def test_top_of_a_namespace_shows_its_pods_alone() -> None:
    assert "default/a" in said("top", "-n", "default")
    assert said("top", "-n", "other") == "No pod of this namespace holds a GPU.\n"
    rows = json.loads(said("top", "-n", "default", "-o", "json"))
    assert {row["pod"].partition("/")[0] for row in rows} == {"default"}


def test_a_large_cluster_is_shown_by_node_unless_more_is_asked_for() -> None:
    state = state_of("65-full-nodes")
    (model,) = [item for item in state["items"] if item["kind"] == "Node" and item["metadata"]["name"] == "n1"]
    many = [{**model, "metadata": {**model["metadata"], "name": f"node-{at}"}} for at in range(600)]
    large = {**state, "items": [*state["items"], *many]}
    text = said("top", state=large)
    assert "GPU 0" not in text
    assert "Shown by nodes, because there are many; see --level." in text
    assert "GPU 0" in said("top", "--level", "gpus", state=large)
    assert len(json.loads(said("top", "-o", "json", state=large))) > 600


def test_a_timeout_of_resize_is_a_number() -> None:
    result = CliRunner().invoke(main, ["resize", "p", "--memory", "1Gi", "--timeout", "nan"])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2,
        "Error: Invalid value for '--timeout': nan is not a number",
    )
