"""What a report says about a cluster, and how charts round it."""

import xml.etree.ElementTree as ET
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.objects import Pod
from simulation.plan.chart import Axes, bar_chart, line_chart, number, ticks
from simulation.plan.engine import Engine, Placed
from simulation.plan.gauge import Gauge
from simulation.plan.links import estimated_gbps
from simulation.plan.machines import read_cluster
from simulation.plan.objects import arrival_of
from simulation.plan.question import Kinds, Question
from tests.builders import container, pod


def asking(gpus: int, percent: int = 100, cores: int = 0) -> Pod:
    return pod(container(gpu=gpus, gpumem_percentage=percent, gpucores=cores))


def test_a_gpu_counts_by_its_memory_or_its_cores_and_an_island_as_long_as_no_pod_uses_it() -> None:
    question = Question(cluster=read_cluster("1x:dgx-a100,1x:4x-a100,1x:8x-rtx4090"))
    engine = Engine(question.cluster, question.settings, question.hosts)
    kinds = Kinds(question)
    shapes = [arrival_of(asking(1, 10, 60)), arrival_of(asking(1, 50, 10))]
    gauge = Gauge(engine, kinds.workload(shapes))
    empty = gauge.read()
    assert (empty.gpus, empty.whole, empty.allocated) == (20, 20, 0.0)
    # A DGX is one island, two pairs are bridged, and GeForce cards have no NVLink.
    assert (empty.islands, empty.whole_islands) == (3, 3)
    for name, arrival in enumerate(shapes):
        assert isinstance(engine.place(arrival, str(name), 0.0, only=["dgxa100-8x-a100-40g-1"]), Placed)
    reading = gauge.read()
    assert reading.whole == 18
    assert reading.whole_islands == 2
    assert reading.allocated == pytest.approx(0.6 + 0.5, abs=0.01)


def test_the_order_in_which_nodes_are_measured_does_not_matter() -> None:
    question = Question(cluster=read_cluster("5x:1x-t4"))
    engine = Engine(question.cluster, question.settings, question.hosts)
    names = sorted(engine.changed)
    for position, node in enumerate(names):
        engine.place(arrival_of(asking(1, 7 + 11 * position)), node, 0.0, only=[node])
    readings = []
    for order in permutations(names):
        engine.changed = dict.fromkeys(order)  # type: ignore[assignment]
        readings.append(Gauge(engine, Kinds(question).workload([arrival_of(asking(1, 30))])).read())
    assert all(reading == readings[0] for reading in readings)


def test_described_machines_know_their_links_and_scores_estimate_others() -> None:
    cluster = read_cluster("1x:dgx-a100,1x:8x-rtx4090")
    assert set(cluster.links.known.values()) > {240.0}
    assert estimated_gbps(1210) == 240.0
    assert estimated_gbps(50) == 24.0
    assert estimated_gbps(0) == 0.0


BOUNDS = st.floats(-1e6, 1e6, allow_nan=False)


@given(low=BOUNDS, high=BOUNDS)
def test_ticks_reach_around_the_values_and_are_few(low: float, high: float) -> None:
    low, high = sorted((low, high))
    marks = ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1)
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack
    assert 2 <= len(marks) <= 9
    assert list(marks) == sorted(set(marks))


def test_numbers_are_as_exact_as_a_chart_can_show() -> None:
    assert [number(each) for each in (1213.0, 94.34, 0.516, 3.0)] == ["1 213", "94.3", "0.52", "3"]


def test_charts_are_well_formed_whatever_they_show() -> None:
    odd = "<a> & \"b\" 'c'"
    for text in (
        line_chart(Axes(title=odd, x="x", y="y"), {odd: [(0.0, 1.0), (1.0, 1.0)], "none": []}),
        line_chart(Axes(title="empty", x="x", y="y"), {}),
        bar_chart(odd, [(odd, 0.0, "0 h"), ("b", 3.0, "3 h")]),
        bar_chart("empty", []),
    ):
        assert ET.fromstring(text).tag.endswith("svg")
