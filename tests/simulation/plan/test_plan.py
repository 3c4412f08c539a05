"""`topogpu-sim plan`, as it is typed."""

import asyncio
import json
import xml.etree.ElementTree as ET
from multiprocessing import active_children
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from simulation.cli import main
from simulation.plan.progress import Lines, shown_progress
from tests.polling import until

DATA = Path(__file__).parents[2] / "data" / "plan"
MIX = ("--cluster", "1x:dgx-a100,1x:4x-a100", "--mix", "notebook=50,training-2=30,training-8=20", "--count", "30")


def plan(*arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["plan", "--processes", "1", *arguments])


def document(*arguments: str) -> Any:
    answer = plan(*arguments, "--output", "json")
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_every_pod_is_placed_or_counted_with_a_reason() -> None:
    for outcome in document(*MIX, "--policy", "binpack", "--policy", "fgd/binpack")["outcomes"]:
        waiting = outcome["waiting"]
        assert outcome["placed"] + sum(kind["pods"] for kind in waiting) == outcome["pods"] == 30
        assert waiting
        assert all(kind["reasons"] for kind in waiting)
        assert sum(size["placed"] for size in outcome["sizes"]) == outcome["placed"]


def test_a_cluster_is_described_by_the_names_that_the_chart_has_too() -> None:
    assert document("--cluster", "1x:l40s,1x:t4", "--mix", "notebook=1", "--count", "1")["gpus"] == 9


def test_the_table_names_each_policy_and_why_pods_found_no_room() -> None:
    answer = plan(*MIX, "--policy", "binpack", "--policy", "spread")
    assert "binpack/binpack" in answer.stdout
    assert "spread/spread" in answer.stdout
    assert "too little free memory" in answer.stdout


def test_no_gpu_is_booked_beyond_what_it_has_and_homes_name_gpus_of_their_node() -> None:
    outcome = document(*MIX, "--policy", "spread", "--each-pod")["outcomes"][0]
    assert len(outcome["homes"]) == outcome["placed"]
    whole = [(home["node"], gpu) for home in outcome["homes"] if "training" in home["pod"] for gpu in home["gpus"]]
    assert len(whole) == len(set(whole)) > 0


def test_generated_pods_come_in_several_orders_so_that_the_answer_says_how_sure_it_is() -> None:
    asked = (*MIX, "--policy", "binpack", "--policy", "spread")
    assert "5 orders of the pods" in plan(*asked).stdout.splitlines()[0]
    assert "one order of the pods" in plan(*asked, "--seeds", "3").stdout.splitlines()[0]


def test_slices_performed_apart_and_merged_are_the_whole(tmp_path: Path) -> None:
    asked = (*MIX, "--policy", "binpack", "--policy", "spread", "--seeds", "1-2")
    for index in range(3):
        part = plan(*asked, "--slice", f"{index}/3", "--output", "json")
        (tmp_path / f"{index}.json").write_text(part.stdout)
    merged, whole = document("--merge", str(tmp_path)), document(*asked)
    key = lambda outcome: (outcome["run"]["policy"], outcome["run"]["seed"])  # noqa: E731
    assert sorted(merged["outcomes"], key=key) == sorted(whole["outcomes"], key=key)


def test_a_slice_that_is_missing_is_told_and_one_of_another_question_is_refused(tmp_path: Path) -> None:
    asked = (*MIX, "--policy", "binpack", "--seeds", "1-2", "--output", "json")
    (tmp_path / "0.json").write_text(plan(*asked, "--slice", "0/2").stdout)
    assert document("--merge", str(tmp_path))["notes"] == ["1 of 2 runs are missing"]
    (tmp_path / "1.json").write_text(plan(*asked, "--slice", "1/2", "--fill", "50").stdout)
    assert "is about another question" in plan("--merge", str(tmp_path)).output


def test_a_report_with_a_number_that_nothing_can_have_is_refused(tmp_path: Path) -> None:
    report = document(*MIX, "--policy", "binpack")
    report["outcomes"][0]["samples"][0]["asked"] = 1e308
    (tmp_path / "0.json").write_text(json.dumps(report))
    result = plan("--merge", str(tmp_path), "--html", str(tmp_path / "page.html"))
    assert (result.exit_code, "at `$.outcomes[0].samples[0].asked`" in result.output) == (1, True)


def test_runs_in_several_processes_give_the_same_report() -> None:
    asked = (*MIX, "--count", "2500", "--policy", "binpack", "--seeds", "1-2")
    assert document(*asked, "--processes", "2") == document(*asked)


def test_a_group_of_a_file_is_placed_whole_or_the_report_says_what_it_lacks(tmp_path: Path) -> None:
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 19}}},
    }
    main = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": 4}}}
    template = {
        "metadata": {"annotations": {"topogpu.io/required-topology": "nvidia.com/gpu.clique"}},
        "spec": {"schedulingGroup": {"podGroupName": "train"}, "containers": [main]},
    }
    job = {"kind": "Job", "metadata": {"name": "train"}, "spec": {"parallelism": 19, "template": template}}
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"kind": "List", "items": [group, job]}))
    (outcome,) = document("--cluster", "1x:gb200-nvl72", "-f", str(file), "--policy", "binpack")["outcomes"]
    assert outcome["placed"] == 0
    assert "needs 19 nodes of one clique; the largest free clique has 18" in outcome["waiting"][0]["reasons"][0][0]


def members(group: str, pods: int, least: int) -> list[dict[str, Any]]:
    """Returns pods that take a DGX A100 each, and their group."""
    spec = {"schedulingPolicy": {"gang": {"minCount": least}}}
    made = {"kind": "PodGroup", "apiVersion": "scheduling.k8s.io/v1beta1", "metadata": {"name": group}, "spec": spec}
    main = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    pod = {"kind": "Pod", "spec": {"schedulingGroup": {"podGroupName": group}, "containers": [main]}}
    return [made, *(pod | {"metadata": {"name": f"{group}-{number}"}} for number in range(pods))]


def listed(path: Path, *items: dict[str, Any]) -> str:
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return str(path)


def test_a_group_starts_whole_also_between_pods_of_another_one(tmp_path: Path) -> None:
    pairs = zip(members("a", 3, 3), members("b", 3, 3), strict=True)
    file = listed(tmp_path / "groups.json", *(one for pair in pairs for one in pair))
    asked = ("--cluster", "5x:dgx-a100", "-f", file, "--policy", "binpack")
    assert [outcome["placed"] for outcome in document(*asked, "--seeds", "1-4")["outcomes"]] == [3] * 4
    assert document(*asked)["outcomes"][0]["placed"] == 3
    assert len(document(*asked, "--together")["together"]["homes"]) == 3


def test_each_copy_of_a_group_starts_whole(tmp_path: Path) -> None:
    file = listed(tmp_path / "group.json", *members("a", 3, 3))
    for nodes, placed in ((4, 3), (5, 3), (6, 6)):
        asked = ("--cluster", f"{nodes}x:dgx-a100", "-f", file, "--copies", "2", "--policy", "binpack")
        assert document(*asked)["outcomes"][0]["placed"] == placed


def test_a_group_that_lacks_pods_has_a_note(tmp_path: Path) -> None:
    file = listed(tmp_path / "group.json", *members("a", 2, 3))
    notes = document("--cluster", "2x:dgx-a100", "-f", file, "--policy", "binpack")["notes"]
    assert notes == ["group default/a needs 3 pods and has 2: it would not start"]


def test_copies_are_those_of_files_alone() -> None:
    mix = ("--cluster", "1x:dgx-a100", "--mix", "notebook=1", "--count", "2", "--policy", "binpack", "--seeds", "1")
    assert document(*mix, "-f", POD, "--copies", "3")["outcomes"][0]["pods"] == 5


def test_more_copies_than_a_plan_takes_are_refused(tmp_path: Path) -> None:
    file = listed(tmp_path / "many.json", *members("a", 201, 0))
    answer = plan("--cluster", "1x-t4", "-f", file, "--copies", "1000")
    assert "a plan has at most 200000 pods" in answer.stderr


def test_where_no_terminal_shows_a_bar_a_line_says_how_far_a_long_plan_is(capfd: pytest.CaptureFixture[str]) -> None:
    with shown_progress("placing") as shown:
        shown(0.1, "0 of 2 runs")
    lines = Lines("placing", clock=iter((0.0, 4.0, 6.0, 7.0, 17.0, 30.0, 40.0)).__next__)
    for part in (0.1, 0.01, 0.3, 0.5, 1.0):
        lines.done(part, "0 of 2 runs")
    assert capfd.readouterr().err.splitlines() == [
        "placing 0 of 2 runs, 1 % done after 6 s",
        "placing 0 of 2 runs, 50 % done after 17 s, about 17 s left",
    ]


def test_a_path_that_cannot_be_written_is_named_before_the_runs() -> None:
    days = ("--count", "100000", "--seeds", "1-100")
    for option in ("--html", "--json", "--svg"):
        answer = plan(*MIX, *days, option, "/proc/none/plan")
        assert answer.exit_code == 1
        assert "Error: /proc/none/plan: cannot be written: No such file or directory" in answer.output


def test_a_process_that_is_killed_ends_the_plan_with_a_sentence() -> None:
    def kill() -> None:
        asyncio.run(until(active_children))
        for process in active_children():
            process.kill()

    killing = Thread(target=kill)
    killing.start()
    answer = plan(*MIX, "--count", "10000", "--policy", "binpack", "--policy", "spread", "--processes", "2")
    killing.join()
    assert answer.exit_code == 1
    assert "Error: a process of the plan ended early" in answer.output


def test_the_report_is_one_page_that_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    html, svg = tmp_path / "plan.html", tmp_path / "plan.svg"
    assert plan(*MIX, "--policy", "binpack", "--html", str(html), "--svg", str(svg)).exit_code == 0
    text = html.read_text()
    body = ET.fromstring(text[text.index("<body>") : text.index("</html>")])
    assert len(list(body.iter("{http://www.w3.org/2000/svg}svg"))) == 4
    assert not [each for each in ("src=", "href=", "@import", "<script") if each in text]
    assert ET.fromstring(svg.read_text()).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_pod_that_waits_gets_its_gpu_when_another_one_ends() -> None:
    only = outcome_of_a_trace("first,1,0,100\nsecond,1,10,50\nthird,2,20,5\n")
    assert [(home["pod"], home["waited"]) for home in only["homes"]] == [("default/first", 0), ("default/second", 90)]
    assert only["delay"] == {
        "mean": 45.0,
        "p95": 90.0,
        "longest": 90.0,
        "at_once": 1,
        "placed": 2,
        "never": 1,
        "allocated": 100.0,
    }


STATE = str(DATA.parent / "documents" / "state.json")
POD = str(DATA.parent / "documents" / "pod.json")


def test_a_recorded_cluster_keeps_what_runs_there() -> None:
    alone = document("--state", STATE, "-f", POD, "--copies", "9", "--policy", "binpack")["outcomes"][0]
    assert (alone["placed"], alone["end"]["whole"]) == (1, 1)


def test_added_nodes_make_room() -> None:
    more = ("--add-nodes", "1x:dgx-a100")
    asked = ("--state", STATE, "-f", POD, "--copies", "9", "--policy", "binpack", *more)
    assert [(each["run"]["before"], each["placed"]) for each in document(*asked)["outcomes"]] == [(True, 1), (False, 5)]
    text = plan(*asked).stdout
    assert "5 of 9 new pods find room, without the change 1." in text.splitlines()[0]
    assert [line.split("  ")[0] for line in text.splitlines()[4:7]] == [
        "now",
        "binpack/binpack, unchanged",
        "binpack/binpack",
    ]


def test_a_drained_node_shows_where_its_pods_go() -> None:
    other = ("--add-nodes", "1x:4x-a100")
    text = plan("--state", STATE, "--drain", "gpu-1", "--policy", "binpack", *other).stdout
    assert "1 of 1 pod of drained nodes find another" in text.splitlines()[0]
    (moved,) = [line.split() for line in text.splitlines() if line.startswith("ml/notebook ")]
    assert moved[:3] == ["ml/notebook", "gpu-1", "added-4x-a100-pcie-80g-bridged-1"]


def test_waiting_pods_that_ask_for_the_same_are_one_row_with_their_names(tmp_path: Path) -> None:
    rows = "".join(f"w{at},{'ab'[at % 2]},8\n" for at in range(5))
    (tmp_path / "pods.csv").write_text(f"name,namespace,gpus\n{rows}")
    text = plan("--cluster", "1x-t4", "-f", str(tmp_path / "pods.csv"), "--policy", "binpack").stdout
    (row,) = [line for line in text.splitlines() if "8 GPUs" in line]
    assert row.split()[0] == "5"
    assert "and 2 more" in row


def test_a_batch_is_compared_with_one_by_one() -> None:
    state = str(DATA.parent / "documents" / "full.json")
    answer = document("--state", state, "-f", POD, "--copies", "2", "--together")
    assert answer["pods"] == len(answer["together"]["homes"]) + len(answer["together"]["refused"])
    first, question = plan("--state", state, "-f", POD, "--copies", "2", "--together").stdout.splitlines()[:2]
    assert "find room" in first
    assert "pods to place; policy binpack/spread" in question


def test_without_any_node_left_every_pod_waits() -> None:
    answer = plan("--state", STATE, "--drain", "gpu-1", "--policy", "binpack")
    assert answer.exit_code == 0
    assert "cannot be placed again: ml/notebook of gpu-1: there is no node" in answer.stdout


def test_the_pod_that_came_first_is_tried_first_and_not_the_first_of_the_file() -> None:
    homes = outcome_of_a_trace("late,1,20,50\nearly,1,10,50\nfirst,1,0,100\n")["homes"]
    assert [home["pod"] for home in homes] == ["default/first", "default/early", "default/late"]


def test_a_pod_that_asks_for_less_is_not_held_up_by_those_before_it() -> None:
    rows = "first,1,0,100\n" + "".join(f"large-{n},2,1,10\n" for n in range(5)) + "second,1,2,30\nthird,1,3,30\n"
    outcome = outcome_of_a_trace(rows)
    assert [(home["pod"], home["waited"]) for home in outcome["homes"]] == [
        ("default/first", 0),
        ("default/second", 98),
        ("default/third", 127),
    ]
    (large,) = outcome["waiting"]
    assert (large["pods"], outcome["delay"]["never"]) == (5, 5)
    assert large["examples"] == ["default/large-0", "default/large-1", "default/large-2"]


def test_times_of_centuries_are_times() -> None:
    assert outcome_of_a_trace("a,1,1e9,1e9\nb,1,1e9,1e9\n")["delay"]["longest"] == 1e9


def test_with_times_each_seed_is_another_order_at_the_same_times() -> None:
    rows = "".join(f"p{number},1,{number},{10 * number}\n" for number in range(1, 9))
    outcomes = [outcome_of_a_trace(rows, "--seeds", str(seed)) for seed in range(1, 4)]
    assert len({home["pod"] for outcome in outcomes for home in outcome["homes"][:1]}) > 1
    for outcome in outcomes:
        assert sorted(home["pod"] for home in outcome["homes"]) == [f"default/p{number}" for number in range(1, 9)]
        assert outcome["samples"][1]["seconds"] == 1.0


def outcome_of_a_trace(rows: str, *more: str) -> Any:
    with NamedTemporaryFile("w", suffix=".csv") as trace:
        trace.write(f"name,gpus,at_seconds,lasts_seconds\n{rows}")
        trace.flush()
        asked = ("--cluster", "1x-t4", "-f", trace.name, "--policy", "binpack", "--replay")
        return document(*asked, "--each-pod", *more)["outcomes"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "8x:dgx-b300", "--mix", "notebook=1"], "dgx-b300: no such file; Simulated machines are "),
        (["--cluster", "l40", "--mix", "notebook=1"], "l40: no such file; did you mean 8x-l40s? "),
        (["--cluster", "dgx", "--mix", "notebook=1"], "may be dgx1v-8x-v100-32g or dgx2-16x-v100-32g or dgxa100-8x"),
        (["--cluster", "0x:dgx-a100", "--mix", "notebook=1"], "a plan has 1 to 10000 nodes"),
        (["--cluster", "ax:dgx-a100", "--mix", "notebook=1"], "expected COUNTx:MACHINE, such as 8x:dgx-a100"),
        (["--cluster", "1x-t4", "--mix", "notebok=1"], "there is no kind of work 'notebok'; the nearest are notebook"),
        (["--cluster", "1x-t4", "--mix", "notebook=-1"], "expected KIND=SHARE, such as notebook=20"),
        (["--cluster", "1x-t4"], "there is no pod to place; give --filename, --mix, or a --state with waiting pods"),
        (["--mix", "notebook=1"], "describe one cluster: give --cluster, --state or --snapshot"),
        (["--cluster", "1x-t4", "-f", "/none.yaml"], "/none.yaml: cannot be read: No such file or directory"),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--policy", "bestfit"], "unknown node policy 'bestfit'"),
        (
            ["--cluster", "1x-t4", "--mix", "notebook=1", "--seeds", "9-1"],
            "expected a number, or the first and the last",
        ),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--slice", "2/2"], "expected INDEX/COUNT with an index from 0"),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--slice", "²/3"], "expected INDEX/COUNT with an index from 0"),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--seeds", "²"], "expected a number, or the first and the last"),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--seeds", "9" * 5000], "expected a number, or the first"),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--advise", "--seeds", "1-3"], "looks at one moment"),
        (
            ["--cluster", "1x-t4", "--mix", "notebook=1", "--together", "--html", "x"],
            "--together goes with one --policy",
        ),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--together", "--advise"], "give one of them"),
        (["--cluster", "1x-t4", "--mix", "notebook=1", "--drain", "other"], "the cluster has no such node"),
        (["--merge", "/none"], "there is no *.json"),
    ],
)
def test_a_bad_question_is_one_sentence(arguments: list[str], said: str) -> None:
    answer = plan(*arguments)
    assert answer.exit_code
    assert said in answer.output
    assert answer.output.count("Error: ") == 1
