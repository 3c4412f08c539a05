"""Replays a trace of pods on the extender's own ledger and decisions, with or without departures.

The part of kube-scheduler, CPU and memory, is simulated. So are pods without GPUs: `CpuPods` names what places them.
"""

import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from statistics import mean

from benchmarks.openb import Arrival, Asked, TraceError
from proto.annotations.keys import DEVICES_ALLOCATED, NODE_REGISTER
from proto.annotations.node_register import decode_register
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Node
from proto.kubernetes.requests import host_amount
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.score import node_score, preference
from scheduler_ext.policies import NodePolicy, parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestSettings, read_request
from scheduler_ext.verbs.prioritize import priorities_without_gpus

LARGE = 8
"""GPUs of a large pod."""
TIMES = 3
EVERY = 10
"""Pods come and go on every tenth node of the trace: all pods together keep the whole cluster busy for minutes only."""
LONGEST_SECONDS = 6 * 3600.0
"""A pod that runs longer counts as this: otherwise the first pods would fill the cluster and never leave."""
RETRY_SECONDS = 60.0


class CpuPods(StrEnum):
    """The chooser of the node of a pod without GPUs."""

    POLICY = "policy"
    """The node policy, as in the paper."""
    ASKED = "asked"
    """kube-scheduler, with the extender's answer to /prioritize-without-gpus; among equal nodes LeastAllocated."""
    MOST = "most"
    """kube-scheduler with MostAllocated."""
    LEAST = "least"
    """kube-scheduler with LeastAllocated, its default."""
    AWAY = "away"
    """They run on other nodes."""


class Cluster:
    """Nodes, the extender's ledger, and what kube-scheduler would count beside it."""

    def __init__(self, nodes: Sequence[Node], policy: str, cpu_pods: CpuPods) -> None:
        node_policy, _, gpu_policy = policy.partition("/")
        self._settings = RequestSettings(
            node_policy=parse_node_policy(node_policy), gpu_policy=parse_gpu_policy(gpu_policy)
        )
        self._ledger = Ledger(self._settings)
        self._ledger.replace_nodes(nodes)
        # Pods follow each other without time to prepare: each may judge every node. All kinds of pods are remembered.
        self._index = NodeIndex(self._ledger, least_most_effort=1 << 40, most_shapes=1_000)
        self._cpu_pods = cpu_pods
        self._totals = {node.metadata.name: host_amount(node.status.allocatable) for node in nodes}
        self._left = dict(self._totals)
        self._where: dict[str, tuple[str, Asked]] = {}

    def place(self, uid: str, asked: Asked) -> bool:
        """Returns whether the pod found room."""
        if not asked.gpus and self._cpu_pods is CpuPods.AWAY:
            return True
        pod = asked.pod(uid)
        self._ledger.apply_pod(pod)
        cpu, memory = asked.host
        offered = [name for name, left in self._left.items() if left[0] >= cpu and left[1] >= memory]
        request = read_request(pod, self._settings)
        if request is None:
            node = pod.spec.node_name = self._for_cpu_pod(asked, offered) or ""
            self._ledger.apply_pod(pod)
        else:
            choice = self._index.choose(request, offered)
            node = choice.node or ""
            if node:
                pod.metadata.annotations[DEVICES_ALLOCATED] = encode_pod_devices(choice.shares)
                pod.spec.node_name, pod.status.phase = node, "Running"
                self._ledger.apply_pod(pod)
        if not node:
            return False
        self._left[node] = self._left[node].minus(asked.host)
        self._where[uid] = node, asked
        return True

    def leave(self, uid: str) -> None:
        self._ledger.remove_pod(uid)
        if uid not in self._where:
            return
        node, asked = self._where.pop(uid)
        self._left[node] = self._left[node].plus(asked.host)

    def _for_cpu_pod(self, asked: Asked, offered: Sequence[str]) -> str | None:
        if self._cpu_pods is CpuPods.MOST:
            return min(offered, key=lambda name: -self._used(name), default=None)
        if self._cpu_pods is CpuPods.LEAST:
            return min(offered, key=self._used, default=None)
        levels = self._levels(asked, offered)
        if self._cpu_pods is CpuPods.ASKED:
            scores = priorities_without_gpus(levels)
            return min(offered, key=lambda name: (-scores[name], self._used(name)), default=None)
        policy, highest = self._settings.node_policy, max(levels.values(), default=0)
        order = (preference(policy, name, self._score(name), 0) for name in levels if levels[name] == highest)
        best = min(order, default=None)
        return None if best is None else best[2]

    def _levels(self, asked: Asked, offered: Sequence[str]) -> Mapping[str, int]:
        if self._settings.node_policy is NodePolicy.FGD:
            return self._index.without_gpus(asked.host, offered)
        return dict.fromkeys(offered, 0)

    def _used(self, name: str) -> float:
        """Returns the used parts of CPU and memory, added: kube-scheduler's score up to its rounding."""
        left, total = self._left[name], self._totals[name]
        return -(left.cpu_milli / total.cpu_milli + left.memory_mib / total.memory_mib)

    def _score(self, name: str) -> float:
        usage = self._ledger.nodes.usages().get(name)
        return 0.0 if usage is None else node_score(usage.gpus).total


def arrive(
    nodes: Sequence[Node], pods: Sequence[Arrival], seed: int, policy: str, cpu_pods: CpuPods
) -> Mapping[str, float]:
    """Places all pods and more, in random order; none leaves. Returns the percent of all GPUs allocated when as many as
    exist are requested, and at 130 %; and the number of refused pods of eight GPUs.
    """
    capacity = 1000 * sum(map(_gpus, nodes))
    cluster, asked_for, allocated, refused, at_100 = Cluster(nodes, policy, cpu_pods), 0, 0, 0, 0.0
    for number, asked in enumerate(_drawn([each.asked for each in pods], capacity * 1.3, seed)):
        asked_for += asked.amount
        if cluster.place(f"p{number}", asked):
            allocated += asked.amount
        else:
            refused += asked.gpus == LARGE
        if not at_100 and asked_for >= capacity:
            at_100 = 100 * allocated / capacity
    return {"at_100": at_100, "at_130": 100 * allocated / capacity, "refused": refused}


def _gpus(node: Node) -> int:
    return len(decode_register(node.metadata.annotations[NODE_REGISTER]))


def _drawn(pods: Sequence[Asked], until: float, seed: int) -> list[Asked]:
    """Returns all of them and more, in random order."""
    draw, drawn = random.Random(seed), list(pods)
    amount = sum(each.amount for each in pods)
    while amount + (more := draw.choice(pods)).amount <= until:
        drawn.append(more)
        amount += more.amount
    draw.shuffle(drawn)
    return drawn


def come_and_go(
    nodes: Sequence[Node], pods: Sequence[Arrival], seed: int, policy: str, cpu_pods: CpuPods, *, load: float
) -> Mapping[str, float]:
    """Each pod comes `TIMES` times, in random order and at random times, and keeps its room for as long as in the
    trace. On average they request `load` times all GPUs.

    Returns the percent of all GPUs allocated from the first wait to the last arrival. For pods with GPUs, and for those
    with eight: the hours that they wait on average, and the percent placed at once. Then how many pods wait at the end.
    Raises TraceError for a list without times.
    """
    if not any(each.lasts > 0 for each in pods):
        raise TraceError("these pods have no times, so they cannot come and go; take another list")
    nodes = nodes[::EVERY]
    draw, capacity = random.Random(seed), 1000 * sum(map(_gpus, nodes))
    comes = [each for each in pods for _ in range(TIMES)]
    draw.shuffle(comes)
    span = sum(each.asked.amount * _lasts(each) for each in comes) / (load * capacity)
    arrivals = sorted(draw.uniform(0, span) for _ in comes)
    queue = _Queue(Cluster(nodes, policy, cpu_pods))
    for number, (now, pod) in enumerate(zip(arrivals, comes, strict=True)):
        queue.pass_to(now)
        queue.come(f"p{number}", pod)
    return queue.summary(capacity)


def _lasts(pod: Arrival) -> float:
    return min(max(pod.lasts, 1.0), LONGEST_SECONDS)


class _Queue:
    """Pods that wait, and those that run and will leave.

    Waiting pods are tried again after others have left, the oldest first, every `RETRY_SECONDS` at most. Of pods with
    the same request, one that finds no room stands for all.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._leaving: list[tuple[float, str, int]] = []
        self._waiting: dict[str, tuple[float, Arrival]] = {}
        self._now = self._retried = 0.0
        self._held = 0
        self._crowded: tuple[float, float] = 0.0, 0.0
        """Seconds since the first wait, and the sum over them of what is allocated."""
        self._waits: list[tuple[int, float]] = []
        """GPUs and seconds of each placed pod."""

    def come(self, uid: str, pod: Arrival) -> None:
        if not self._tried(uid, self._now, pod):
            self._waiting[uid] = self._now, pod

    def pass_to(self, until: float) -> None:
        while self._leaving and self._leaving[0][0] <= until:
            now, uid, amount = heappop(self._leaving)
            self._pass(now)
            self._cluster.leave(uid)
            self._held -= amount
            if now - self._retried >= RETRY_SECONDS:
                self._retry()
        self._pass(until)

    def summary(self, capacity: int) -> Mapping[str, float]:
        seconds, held = self._crowded
        every = [waited for gpus, waited in self._waits if gpus]
        large = [waited for gpus, waited in self._waits if gpus == LARGE]
        # Pods that still wait count with the time until now.
        still = [(pod.asked.gpus, self._now - came) for came, pod in self._waiting.values() if pod.asked.gpus]
        every += [waited for _, waited in still]
        large += [waited for gpus, waited in still if gpus == LARGE]
        return {
            "allocated": 100 * held / seconds / capacity if seconds else 0.0,
            "wait": mean(every) / 3600,
            "at_once": 100 * every.count(0.0) / len(every),
            "large_wait": mean(large or [0.0]) / 3600,
            "large_at_once": 100 * large.count(0.0) / max(len(large), 1),
            "waiting": len(still),
        }

    def _pass(self, now: float) -> None:
        seconds, held = self._crowded
        if seconds or self._waiting:
            self._crowded = seconds + now - self._now, held + self._held * (now - self._now)
        self._now = now

    def _retry(self) -> None:
        self._retried = self._now
        hopeless = set[Asked]()
        for uid, (came, pod) in list(self._waiting.items()):
            if pod.asked not in hopeless and self._tried(uid, came, pod):
                del self._waiting[uid]
            else:
                hopeless.add(pod.asked)

    def _tried(self, uid: str, came: float, pod: Arrival) -> bool:
        if not self._cluster.place(uid, pod.asked):
            return False
        heappush(self._leaving, (self._now + _lasts(pod), uid, pod.asked.amount))
        self._held += pod.asked.amount
        self._waits.append((pod.asked.gpus, self._now - came))
        return True
