"""The reader of the trace that the packing benchmark replays, and its replay, on a few lines of its form."""

from pathlib import Path

import pytest

from benchmarks.openb import GPU_MIB, Asked, TraceError, read_nodes, read_pods
from benchmarks.packing import Results, Run
from benchmarks.trace_replay import CpuPods, arrive, come_and_go
from proto.annotations import keys
from proto.annotations.node_register import decode_register
from proto.kubernetes.requests import HostAmount, host_amount, host_requested
from scheduler_ext.requests import RequestSettings, read_request

FOLDER = Path(__file__).parent / "data" / "openb"


def test_nodes_have_gpus_of_one_model_and_their_cpu_and_memory() -> None:
    first, second = read_nodes(FOLDER)
    devices = decode_register(second.metadata.annotations[keys.NODE_REGISTER])
    assert [(each.type, each.memory_mib) for each in devices] == [("NVIDIA T4", GPU_MIB)] * 8
    assert host_amount(first.status.allocatable) == HostAmount(64_000, 262_144)


def test_pods_ask_for_a_part_of_each_gpu_and_for_models() -> None:
    whole, share, cpu, several = read_pods(FOLDER, "small")
    assert (whole.at, whole.lasts) == (0.0, 100.0)
    assert share.asked == Asked(host=HostAmount(6000, 12_288), gpus=1, milli=460, models="P100,T4")
    assert (cpu.asked.amount, several.asked.amount) == (0, 4000)
    request = read_request(share.asked.pod("p"), RequestSettings())
    assert request is not None
    (need,) = request.needs
    assert need is not None
    assert (need.count, need.memory_mib, request.filter.types) == (1, 460 * GPU_MIB // 1000, ("p100", "t4"))
    assert host_requested(share.asked.pod("p")) == HostAmount(6000, 12_288)
    assert read_request(cpu.asked.pod("c"), RequestSettings()) is None


def test_a_folder_without_the_trace_is_named() -> None:
    with pytest.raises(TraceError, match=r"openb_pod_list_other\.csv cannot be read: No such file"):
        read_pods(FOLDER, "other")


def test_what_is_no_number_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "openb_pod_list_bad.csv"
    file.write_text((FOLDER / "openb_pod_list_small.csv").read_text().replace("460", "half"))
    with pytest.raises(TraceError, match=r"openb_pod_list_bad\.csv, line 3: gpu_milli is 'half', no whole number"):
        read_pods(tmp_path, "bad")
    file.write_text("name,cpu_milli\np,1\n")
    with pytest.raises(TraceError, match=r"openb_pod_list_bad\.csv, line 2: num_gpu is missing"):
        read_pods(tmp_path, "bad")


def test_a_list_without_times_and_models_can_arrive_but_not_leave(tmp_path: Path) -> None:
    (tmp_path / "openb_pod_list_bare.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,2000,4096,1,500\n"
    )
    nodes, pods = read_nodes(FOLDER), read_pods(tmp_path, "bare")
    assert (pods[0].asked.models, pods[0].lasts) == ("", 0)
    assert arrive(nodes, pods, 1, "fgd/fgd", CpuPods.POLICY)["at_130"] > 90
    with pytest.raises(TraceError, match="these pods have no times"):
        come_and_go(nodes, pods, 1, "fgd/fgd", CpuPods.POLICY, load=1.0)


@pytest.mark.parametrize("policy", ["fgd/fgd", "binpack/binpack"])
@pytest.mark.parametrize("cpu_pods", list(CpuPods))
def test_pods_arrive_until_more_than_all_gpus_are_asked_for(policy: str, cpu_pods: CpuPods) -> None:
    nodes, pods = read_nodes(FOLDER), read_pods(FOLDER, "small")
    found = arrive(nodes, pods, 1, policy, cpu_pods)
    assert 50 < found["at_100"] <= found["at_130"] <= 100
    assert arrive(nodes, pods, 1, policy, cpu_pods) == found


def test_pods_that_come_and_go_wait_where_too_many_come() -> None:
    """Of these nodes every tenth is the first, and it has no room for the last pod."""
    nodes, pods = read_nodes(FOLDER), read_pods(FOLDER, "small")[:3]
    much, little = (come_and_go(nodes, pods, 1, "fgd/fgd", CpuPods.POLICY, load=load) for load in (3.0, 0.01))
    assert much["at_once"] < 100 == little["at_once"]
    assert much["wait"] > 0 == little["wait"]


def test_results_are_kept_in_a_file(tmp_path: Path) -> None:
    run = Run(pods="small", policy="fgd/fgd", cpu_pods=CpuPods.LEAST)
    Results(tmp_path / "r").put(run, {"at_100": 1.5})
    kept = Results(tmp_path / "r")
    assert kept.of([run]) == {"at_100": [1.5]}
    assert kept.of([run, Run(pods="other", policy="fgd/fgd", cpu_pods=CpuPods.LEAST)]) is None
