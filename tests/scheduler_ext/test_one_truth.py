"""Page, plugin and `/filter` give one answer about every pod and every GPU, whatever the cluster looks like."""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kubectl_topogpu.cluster import DELETED, GpuCluster, Objects, read_cluster
from kubectl_topogpu.fit import FitShape, fit
from kubectl_topogpu.top import barred_by, domains
from kubectl_topogpu.why import PodAccount, answer_for
from proto.annotations import keys
from proto.annotations.memory_resize import ResizeAnswer, ResizeState, encode_answer
from proto.annotations.outliving_pods import Outliving, encode_outliving
from proto.annotations.pod_devices import encode_pod_devices
from proto.annotations.set_aside import SetAside, encode_set_aside
from proto.devices import DeviceShare, DeviceUUID
from proto.extender import ExtenderArgs
from proto.kubernetes.objects import (
    Container,
    Node,
    Pod,
    Resources,
    SchedulingGate,
    Toleration,
)
from scheduler_ext.apiserver import trim_pod
from scheduler_ext.capacity.account import account
from scheduler_ext.capacity.largest import largest
from scheduler_ext.capacity.nearest import on_nodes
from scheduler_ext.cluster.events import Dropped, Listed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.requests import RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.status.explaining import Explainer
from scheduler_ext.status.poller import Poller
from scheduler_ext.status.view import Poll, ShownNode, Standing, node_of
from scheduler_ext.status.waiting import WhyWaiting
from scheduler_ext.verbs.filter_decision import FilterAnswer, FilterDecision, reasons_of, unresolvable
from scheduler_ext.verbs.live_cluster import LiveCluster
from simulation.plan.objects import Constraints
from simulation.plan.offers import node_problem
from simulation.scheduling_queue import is_waiting
from tests import builders
from tests.scheduler_ext.gpus import device

SETTINGS = RequestSettings()
OURS, FOREIGN = "topogpu-scheduler", "another-scheduler"
TAINTS = ({"key": "team", "value": "a", "effect": "NoSchedule"}, {"key": "nvidia.com/gpu", "effect": "NoExecute"})
TOLERATIONS = ((), (), (Toleration(operator="Exists"),), (Toleration(key="team", value="a"),))
MIB = 40_000
WISHES: Sequence[Mapping[str, str]] = (
    {},
    {},
    {keys.MEMORY_WISH: str(MIB)},
    {
        keys.MEMORY_WISH: str(MIB),
        keys.MEMORY_RESIZE: encode_answer(ResizeAnswer(wish=str(MIB), state=ResizeState.GROWING)),
    },
    {keys.MEMORY_WISH: "500", keys.MEMORY_RESIZE: "nonsense"},
)
CLIQUES = (None, None, {keys.NODE_CLIQUE: "fabric.1"}, {keys.NODE_CLIQUE: "fabric.2"})
ASIDE = encode_set_aside(SetAside(node="n0", since=1_900_000_000, until=1_900_086_400))


def uuid(node: str, index: int) -> DeviceUUID:
    return DeviceUUID(f"GPU-{node}-{index}")


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    gpus = [
        replace(device(at, memory_mib=MIB), uuid=uuid(name, at), healthy=draw(st.sampled_from([True, True, False])))
        for at in range(draw(st.integers(1, 3)))
    ]
    ill = draw(st.sampled_from(["", "", "", "register", "cordoned GPU", "outliving"]))
    annotations = {keys.NODE_ALLOCATION: "slots"}
    if ill == "cordoned GPU":
        annotations[keys.DEVICE_CORDON] = gpus[0].uuid
    if ill == "outliving":
        held = {f"uid-gone-{name}": {gpus[0].uuid: (1, 900, 5)}}
        annotations[keys.NODE_OUTLIVING] = encode_outliving(Outliving(9, held, {f"uid-gone-{name}": "team/gone"}))
    ready, labels = draw(st.sampled_from([True, True, False])), draw(st.sampled_from(CLIQUES))
    found = builders.node(name, gpus, annotations=annotations, labels=labels, ready=ready)
    if ill == "register":
        found.metadata.annotations[keys.NODE_REGISTER] = "[{]"
    found.spec.unschedulable = draw(st.sampled_from([False, False, True]))
    found.spec.taints = draw(st.lists(st.sampled_from(TAINTS), max_size=1))
    return found


@st.composite
def bound_pods(draw: st.DrawFn, number: int, names: Sequence[str]) -> Pod:
    node, memory_mib = draw(st.sampled_from(names)), draw(st.sampled_from([1000, MIB // 2, MIB]))
    share = DeviceShare(uuid=uuid(node, draw(st.integers(0, 2))), memory_mib=memory_mib, cores=10)
    written = draw(st.sampled_from([encode_pod_devices(((share,),))] * 4 + ["nonsense", ""]))
    found = builders.pod(
        builders.container(gpu=1, gpumem=memory_mib, gpucores=10),
        name=f"bound-{number}",
        annotations={**({keys.DEVICES_ALLOCATED: written} if written else {}), **draw(st.sampled_from(WISHES))},
        node_name=node,
        phase="Running",
    )
    found.metadata.deletion_timestamp = draw(st.sampled_from([None, None, "2030-01-01T00:00:00Z"]))
    return found


@st.composite
def pending_pods(draw: st.DrawFn, number: int) -> Pod:
    gpus, memory = draw(st.sampled_from([1, 1, 2, 4, 300])), draw(st.sampled_from(["1000", "40000", "400000", "8Gi"]))
    found = builders.pod(
        builders.container(gpu=gpus, gpumem=memory),
        name=f"pending-{number}",
        annotations=draw(
            st.sampled_from(
                [{}, {"nvidia.com/use-gputyp": "A100"}, {keys.USE_GPU_TYPE: "H100"}, {keys.SET_ASIDE: ASIDE}]
            )
        ),
        phase="Pending",
        scheduler_name=draw(st.sampled_from([OURS, OURS, FOREIGN])),
        tolerations=draw(st.sampled_from(TOLERATIONS)),
        scheduling_gates=draw(st.sampled_from([(), (), (SchedulingGate(name="gate"),)])),
    )
    found.metadata.creation_timestamp = "2030-01-01T00:00:00Z"
    found.metadata.deletion_timestamp = draw(st.sampled_from([None, None, None, "2030-01-01T00:00:00Z"]))
    return found


@dataclass(frozen=True)
class Drawn:
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]


@st.composite
def clusters(draw: st.DrawFn) -> Drawn:
    names = [f"n{number}" for number in range(draw(st.integers(1, 4)))]
    found = (
        *(draw(bound_pods(number, names)) for number in range(draw(st.integers(0, 4)))),
        *(draw(pending_pods(number)) for number in range(draw(st.integers(1, 4)))),
        builders.pod(Container(name="c", resources=Resources()), name="without-gpus", phase="Pending"),
    )
    return Drawn(tuple(draw(nodes(name)) for name in names), found)


class Extender:
    """The extender's state after a start, its page, and its answers. `first` of its lists have come, and `rest` brings
    the others.
    """

    def __init__(self, drawn: Drawn, first: Collection[type] = (Node, Pod)) -> None:
        watched = msgspec.convert(msgspec.to_builtins(drawn.pods), tuple[Pod, ...])
        self.live = LiveCluster(Cluster(SETTINGS), lambda: 0.0, lambda *_: None)
        for each in watched:
            trim_pod(each, labelled=False)
        self.lists: dict[type, Listed[Any]] = {Node: Listed(Node, drawn.nodes), Pod: Listed(Pod, watched)}
        self.index = NodeIndex(self.live.state.ledger)
        for kind in first:
            self.live.apply(self.lists.pop(kind))

    def rest(self) -> None:
        for each in self.lists.values():
            self.live.apply(each)
        self.lists.clear()

    async def poll(self) -> Poll:
        """What the page shows once every kind of pod was searched for."""
        standing = Standing(synced=not self.lists)
        explainer = Explainer(self.live)
        poller = Poller(
            cluster=self.live,
            explainer=explainer,
            standing=lambda: standing,
            show=lambda _: asyncio.sleep(0, True),
            watched=lambda: True,
            seconds_since_1970=lambda: 0.0,
        )
        while standing.synced and any(group.shown.why is None for group in await explainer.waiting()):
            await explainer.search()
        return await poller.poll()

    def explain(self, pod: Pod, problem: str) -> str:
        """The sentence of `explain`, with the reason why no decision is possible."""
        state = self.live.state
        return account(
            pod, SETTINGS, problem, state.snapshot_for(pod), state.history.of(pod_key(pod)), now=0.0
        ).sentence

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterAnswer:
        """The answer to kube-scheduler, which asks about these nodes; nothing stays reserved."""
        try:
            request = read_request(pod, SETTINGS)
        except RequestError as error:
            return unresolvable(str(error), ExtenderArgs(pod=pod, nodes=None, node_names=list(names)))
        assert request is not None
        answer = FilterDecision(self.index, self.live.state, 1.0).reserve(pod, request, names, 0.0)
        self.live.apply(Dropped(pod_key(pod)))
        return answer


def offered(drawn: Drawn, pod: Pod) -> list[str] | None:
    """The nodes about which kube-scheduler asks; None for a pod about which it does not ask."""
    if not is_waiting(builders.as_json(pod), {OURS, FOREIGN}):
        return None
    constraints = Constraints(tolerations=tuple(pod.spec.tolerations))
    return [node.metadata.name for node in drawn.nodes if not node_problem(node, constraints)]


def words_by_node(account: PodAccount) -> Mapping[str, str]:
    return {node: group.reason for group in account.refused for node in group.nodes}


def unnumbered(reason: str) -> str:
    """A reason of one node alone has the numbers of its GPUs. kube-scheduler leaves out nodes that `explain` names."""
    return re.sub(r"\bGPU [\d, –-]+ (?:is|are) ", "", reason)


UNKNOWN = "not ready: the API server has not listed pods yet"


def check_nothing_is_claimed(extender: Extender, plugin: GpuCluster, pending: Iterable[Pod]) -> None:
    """Before all is listed the page has no finding, and `explain` names what is missing, or what no list changes."""
    poll = asyncio.run(extender.poll())
    assert poll == Poll(monotonic=0.0, at=0.0, standing=Standing(synced=False))
    for pod in pending:
        said = extender.explain(pod, UNKNOWN)
        assert said.startswith((f"waits: {UNKNOWN}", answer_for(plugin, pod).sentence))


@given(clusters(), st.sampled_from([(), (Node,), (Pod,), (Node, Pod)]))
def test_page_plugin_and_filter_agree_on_every_pod_that_waits(drawn: Drawn, first: Collection[type]) -> None:
    extender, plugin = Extender(drawn, first), read_cluster(Objects(nodes=drawn.nodes, pods=drawn.pods), SETTINGS)
    pending = {pod.full_name: pod for pod in drawn.pods if pod.metadata.name.startswith("pending")}
    if extender.lists:
        check_nothing_is_claimed(extender, plugin, pending.values())
        extender.rest()
    poll = asyncio.run(extender.poll())
    groups = [each.shown for each in poll.waiting]
    whys = {f"{group.namespace}/{name}": group.why for group in groups for name, *_ in group.pods}
    assert whys.keys() == {pod.full_name for pod in plugin.pods} == pending.keys()
    assert poll.waiting_total == plugin.waiting == len(pending)
    for name, pod in pending.items():
        account, why = answer_for(plugin, pod), whys[name]
        assert why is not None
        assert same(why, account)
        names = offered(drawn, pod)
        if names:
            check_answer(extender.filter(pod, names), account, names)


def same(why: WhyWaiting, account: PodAccount) -> bool:
    groups = [(each.reason, each.nodes, each.nearest, each.lacks) for each in why.refused]
    assert why.sentence == account.sentence
    assert groups == [(each.reason, len(each.nodes), each.nearest, each.lacks) for each in account.refused]
    assert [(way.node, way.count) for way in why.ways] == [(way.node, len(way.pods)) for way in account.ways]
    assert why.hints == account.hints
    return why.less == ("" if account.smaller is None else account.smaller.words)


def check_answer(answer: FilterAnswer, account: PodAccount, names: Sequence[str]) -> None:
    if answer.choice is None:  # it cannot be read
        (notice,) = answer.notices()
        assert notice.message in account.sentence
    elif answer.result.node_names:
        assert "its GPUs fit on" in account.sentence
        assert answer.result.node_names[0] in {each.node for each in account.nodes}
    else:
        told, words = reasons_of(answer.choice), words_by_node(account)
        answered = {node: group.reason for group in told for node in group.nodes}
        assert {name: unnumbered(answered[name]) for name in answered} == {
            name: unnumbered(words[name]) for name in names
        }
        message = answer.notices()[-1].message
        assert all(on_nodes(group) in message for group in told)


Row = tuple[int, str, tuple[int, int, int], list[tuple[str, int, int]]]
"""Index, state, what is taken, and the holders of a GPU with their memory and cores."""


def rows_of_page(node: ShownNode) -> list[Row]:
    return [
        (
            gpu.index,
            gpu.state,
            (gpu.replicas[0], gpu.memory[0], gpu.cores[0]),
            sorted((held.pod, held.memory, held.cores) for held in gpu.held),
        )
        for gpu in node.gpus
    ]


def rows_of_plugin(cluster: GpuCluster) -> Mapping[str, list[Row]]:
    return {
        node.name: [
            (
                gpu.device.index,
                gpu.state,
                (gpu.usage.replicas, gpu.usage.memory_mib, gpu.usage.cores),
                sorted((held.pod, held.memory_mib, held.cores) for held in gpu.holders),
            )
            for gpu in node.gpus
        ]
        for node in cluster.nodes
        if not node.problem
    }


@given(clusters())
def test_what_still_fits_on_the_page_is_what_fit_finds_room_for(drawn: Drawn) -> None:
    plugin = read_cluster(Objects(nodes=drawn.nodes, pods=drawn.pods), SETTINGS)
    for found in largest(Extender(drawn).live.state.ledger.snapshot()):
        report = fit(plugin, FitShape(gpus=found.gpus).pod(SETTINGS.names, "empty"))
        assert sum(int(row["pods"] or 0) for row in report.rows) == found.whole_pods


@given(clusters())
def test_page_and_plugin_agree_on_every_gpu_and_who_holds_it(drawn: Drawn) -> None:
    poll = asyncio.run(Extender(drawn).poll())
    plugin = read_cluster(Objects(nodes=drawn.nodes, pods=drawn.pods), SETTINGS)
    assert dict(poll.broken) == {node.name: node.problem for node in plugin.nodes if node.problem}
    gone = {held.pod for node in plugin.nodes for gpu in node.gpus for held in gpu.holders if held.phase == DELETED}
    assert gone <= {"team/gone"}
    shown = {name: node_of(each) for name, each in poll.nodes.items()}
    barred = {node.name: "taint " in barred_by(node) for node in plugin.nodes if not node.problem}
    assert {name: node.tainted for name, node in shown.items()} == barred
    assert {name: rows_of_page(node) for name, node in shown.items()} == rows_of_plugin(plugin)
    told = {node.name: domains(node) for node in plugin.nodes if not node.problem}
    assert {name: ", ".join(map(" ".join, node.domains)) for name, node in shown.items()} == told
