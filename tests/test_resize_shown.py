"""What counts of a pod whose GPU memory changes, and what people see of it: the same everywhere."""

import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from kubectl_topogpu.cluster import Objects, Wanted, read_cluster
from kubectl_topogpu.top import top
from kubectl_topogpu.who import everyone
from kubectl_topogpu.why import answer_for
from proto.annotations import keys
from proto.annotations.memory_resize import ResizeAnswer, ResizeState, encode_answer, resize_words
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.capacity.account import account
from scheduler_ext.cluster.history import PodHistory
from scheduler_ext.requests import RequestSettings
from simulation.recount import recount
from tests.builders import node_json, pod_json

SETTINGS = RequestSettings()
WORDS = {
    ResizeState.SHRINKING: "GPU memory becomes smaller (main=9000): it is busy",
    ResizeState.READY: "GPU memory changes (main=9000): the scheduler decides",
    ResizeState.GROWING: "GPU memory becomes larger (main=9000)",
    ResizeState.DONE: "",
    ResizeState.REFUSED: "GPU memory stays as it is, though main=9000 was wished: it is busy",
}


def resizing(state: ResizeState | None, wish: str = "main=9000@2") -> dict[str, Any]:
    """A pod with 4000 MiB of a GPU."""
    why = "it is busy" if state in (ResizeState.SHRINKING, ResizeState.REFUSED) else ""
    annotations = {keys.DEVICES_ALLOCATED: "GPU-n-0,NVIDIA,4000,0:;", keys.MEMORY_WISH: wish}
    if state is not None:
        annotations[keys.MEMORY_RESIZE] = encode_answer(ResizeAnswer(wish=wish, state=state, why=why))
    return pod_json("p", node_name="n", phase="Running", annotations=annotations)


def printed(report: Any) -> str:
    console = Console(width=200)
    with console.capture() as found:
        console.print(report.text(False))
    return found.get()


@pytest.mark.parametrize("state", [None, *ResizeState])
def test_page_plugin_and_explain_have_the_same_words(state: ResizeState | None) -> None:
    unanswered = "GPU memory shall change (main=9000): its node's daemon has not answered yet"
    words = unanswered if state is None else WORDS[state]
    pod = msgspec.convert(resizing(state), Pod)
    assert resize_words(pod.metadata.annotations) == words
    cluster = read_cluster(Objects(nodes=(msgspec.convert(node_json("n"), Node),), pods=(pod,)), SETTINGS, Wanted())
    explained = account(pod, SETTINGS, "", cluster.snapshot(pod), PodHistory(), now=0.0).sentence
    answered = answer_for(cluster, pod).sentence
    if words:
        assert (explained.endswith(f"; {words}"), answered.endswith(f"; {words}")) == (True, True)
        for report in (top(cluster, cluster.nodes, None), everyone(cluster)):
            assert f"! pod default/p: {words}" in printed(report)
    else:
        assert "GPU memory" not in explained + answered + printed(everyone(cluster))


@pytest.mark.parametrize(
    ("state", "wish", "mib"),
    [
        (ResizeState.GROWING, "main=9000@2", 9000),
        (ResizeState.GROWING, "9Gi", 9216),
        (ResizeState.GROWING, "main=1000", 4000),
        (ResizeState.READY, "9000", 4000),
        (ResizeState.SHRINKING, "1000", 4000),
    ],
)
def test_what_grows_counts_before_the_pod_has_it_and_what_shrinks_until_it_has_not(
    state: ResizeState, wish: str, mib: int
) -> None:
    pod = resizing(state, wish)
    made = Objects(nodes=(msgspec.convert(node_json("n"), Node),), pods=(msgspec.convert(pod, Pod),))
    (gpu,) = read_cluster(made, SETTINGS, Wanted()).snapshot().nodes["n"].gpus
    assert (gpu.memory_mib, recount([json.loads(json.dumps(pod))])["GPU-n-0"]) == (mib, (1, mib, 0))
