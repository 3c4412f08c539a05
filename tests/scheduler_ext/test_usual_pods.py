"""The kinds of pods that a cluster's owner expects count before any pod was seen."""

import json
import re

import pytest

from daemonset.render import CHART
from proto.annotations import keys
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.configuration import TABLE, conflicts
from scheduler_ext.requests import RequestSettings
from scheduler_ext.usual_pods import read_usual_pods, write_usual_pods
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device

TEXT = (
    "70 nvidia.com/gpu=1 nvidia.com/gpumem=8000 nvidia.com/gpucores=30 cpu=4 memory=16Gi; "
    "30 nvidia.com/gpu=8 cpu=500m nvidia.com/use-gputype=H100,H200"
)


def ledger(text: str = TEXT) -> Ledger:
    made = Ledger(RequestSettings(usual_pods=read_usual_pods(text)))
    made.replace_nodes([node("a", [device(0)])])
    return made


def test_they_are_popular_at_once() -> None:
    small, large = ledger().workload().classes
    assert (small.share, small.pods.host) == (0.7, HostAmount(4000, 16 * 1024))
    assert (small.pods.need.count, small.pods.need.memory_mib, small.pods.need.cores) == (1, 8000, 30)
    assert (large.share, large.pods.host, large.pods.need.count) == (0.3, HostAmount(500, 0), 8)
    assert large.pods.types == ("h100", "h200")


def test_pods_that_run_count_beside_them() -> None:
    found = ledger("3 nvidia.com/gpu=1")
    found.apply_pod(pod(container(gpu=8), phase="Running", node_name="a"))
    assert [round(each.share, 3) for each in found.workload().classes] == [0.75, 0.25]


def test_what_is_written_is_read_again() -> None:
    assert write_usual_pods(read_usual_pods(TEXT)) == TEXT
    assert read_usual_pods(" ; ") == ()


@pytest.mark.parametrize(
    "text",
    [
        "nvidia.com/gpu=1",
        "0 nvidia.com/gpu=1",
        "1" * 5000,
        "2 nvidia.com/gpu",
        "2 a/b=1 a/b=2",
        "2 =1",
        "-1 a/b=1",
        "3",
        "2 gpu=1",
    ],
)
def test_what_is_no_kind_of_pods_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no number of pods|does not name each resource"):
        read_usual_pods(text)


@pytest.mark.parametrize(
    "text", ["many", "nvidia.com/gpu=1", "70", "70 gpu=1", "70 nvidia.com/gpu", "0 nvidia.com/gpu=1"]
)
def test_the_charts_schema_refuses_what_is_no_kind_of_pods(text: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    settings = schema["properties"]["scheduler"]["properties"]["settings"]["properties"]
    assert re.search(settings["usual-pods"]["pattern"], TEXT)
    assert not re.search(settings["usual-pods"]["pattern"], text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 cpu=1", "nvidia.com/gpu is missing in '1 cpu=1'"),
        ("1 nvidia.com/gpus=1", "nvidia.com/gpus distinguishes no pods; write one of "),
        ("1 nvidia.com/gpu=x", "nvidia.com/gpu "),
    ],
)
def test_what_asks_for_no_gpu_is_named_at_the_start(text: str, problem: str) -> None:
    (found,) = conflicts(TABLE.filled(usual_pods=read_usual_pods(text)))
    assert found.startswith(f"--usual-pods: {problem}")


def test_they_are_named_by_the_resources_of_the_cluster() -> None:
    usual = read_usual_pods("1 example.com/gpu=1")
    assert not list(conflicts(TABLE.filled(resource_name="example.com/gpu", usual_pods=usual)))
    assert keys.RESOURCE_COUNT == "nvidia.com/gpu"
