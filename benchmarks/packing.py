"""Measures how many GPUs of a real cluster are allocated, and how long pods wait, by policy.

Run it with `python -m benchmarks.packing FOLDER`, the folder as `benchmarks.openb` reads it. Pods arrive in random
order: all pods of the trace once, then random ones, until 130 % of all GPUs are asked for. None leaves. With
`--departures` pods come and go as in the trace.

The extender's own code decides on its own ledger. The part of kube-scheduler, CPU and memory, is simulated. So are pods
without GPUs, about which the extender is not asked: `--cpu-pods` says what places them.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from pathlib import Path
from statistics import mean, stdev

import click
from rich.console import Console
from rich.table import Table

from benchmarks.openb import Arrival, Asked, TraceError, read_nodes, read_pods
from proto.annotations.keys import DEVICES_ALLOCATED, NODE_REGISTER
from proto.annotations.node_register import decode_register
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Node
from proto.kubernetes.requests import HostAmount, host_amount
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.policies import NodePolicy, Policies, parse_gpu_policy, parse_node_policy
from scheduler_ext.quota_class import quota_class
from scheduler_ext.requests import ContainerKind, GpuRequest, RequestSettings, read_request
from scheduler_ext.scheduling.candidates import Candidates
from scheduler_ext.scheduling.fragmentation import Fragmentation
from scheduler_ext.scheduling.nodes import Preference, preference
from scheduler_ext.scheduling.score import node_score

PUBLISHED = {
    "default": (93.08, 95.39),
    "cpu050": (93.79, 95.21),
    "cpu100": (93.44, 95.35),
    "cpu200": (92.40, 95.05),
    "cpu250": (91.45, 93.41),
    "gpushare40": (91.69, 94.15),
    "gpushare60": (89.36, 91.40),
    "gpushare80": (87.01, 89.31),
    "gpushare100": (85.01, 86.90),
    "gpuspec10": (93.31, 94.95),
    "gpuspec20": (93.30, 94.84),
    "gpuspec25": (93.23, 94.74),
    "gpuspec33": (93.09, 94.55),
    "multigpu20": (93.93, 95.65),
    "multigpu30": (94.72, 96.46),
    "multigpu40": (95.23, 96.99),
    "multigpu50": (95.74, 97.18),
}
"""Percent of GPUs allocated at 130 %: BestFit and FGD, means of 10 seeds. Source: hkust-adsl's
kubernetes-scheduler-simulator, experiments/analysis/expected_results/analysis_allo_discrete.csv.
"""
CPU_PODS = ("policy", "most", "least")


class Cluster:
    """Nodes, the extender's ledger, and what kube-scheduler would count beside it."""

    def __init__(self, nodes: Sequence[Node], policy: str, cpu_pods: str) -> None:
        node_policy, _, gpu_policy = policy.partition("/")
        self._settings = RequestSettings(
            node_policy=parse_node_policy(node_policy), gpu_policy=parse_gpu_policy(gpu_policy)
        )
        self._ledger = Ledger(self._settings)
        self._ledger.replace_nodes(nodes)
        # Pods follow each other without time to prepare: each may judge every node.
        self._candidates = Candidates(self._ledger, least_most_effort=1 << 40)
        self._cpu_pods = cpu_pods
        self._orders: dict[Asked, CpuPodOrder] = {}
        self._totals = {node.metadata.name: host_amount(node.status.allocatable) for node in nodes}
        self._left = dict(self._totals)
        self._where: dict[str, tuple[str, Asked]] = {}

    def place(self, uid: str, asked: Asked) -> bool:
        """Whether the pod found room."""
        pod = asked.pod(uid)
        self._ledger.apply_pod(pod)
        offered = [name for name, left in self._left.items() if left[0] >= asked.host[0] and left[1] >= asked.host[1]]
        request = read_request(pod, self._settings)
        if request is None:
            node = pod.spec.node_name = self._for_cpu_pod(asked, offered) or ""
            self._ledger.apply_pod(pod)
        else:
            choice = self._candidates.choose(request, offered)
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
        node, asked = self._where.pop(uid)
        self._left[node] = self._left[node].plus(asked.host)

    def _for_cpu_pod(self, asked: Asked, offered: Sequence[str]) -> str | None:
        """The node that the policy would take, or kube-scheduler's LeastAllocated or MostAllocated."""
        if self._cpu_pods == "policy":
            order = self._orders.setdefault(asked, CpuPodOrder(self._ledger, self._settings, asked))
            return order.first(offered)
        sign = 1 if self._cpu_pods == "most" else -1

        def free(name: str) -> float:
            left, total = self._left[name], self._totals[name]
            return sign * (left[0] / total[0] + left[1] / total[1])

        return min(offered, key=free, default=None)


class CpuPodOrder:
    """Nodes as the node policy would order them for one kind of pods without GPUs."""

    def __init__(self, ledger: Ledger, settings: RequestSettings, asked: Asked) -> None:
        self._ledger = ledger
        self._policy = settings.node_policy
        pod = asked.pod("cpu-pod")
        self._request = GpuRequest(
            pod="cpu-pod",
            namespace="openb",
            uid="cpu-pod",
            quota_class=quota_class(pod),
            needs=(None,),
            kinds=(ContainerKind.APP,),
            policies=Policies(node=settings.node_policy, gpu=settings.gpu_policy),
            host=asked.host,
        )
        self._fragmentation = Fragmentation(ledger.workload())
        self._known: dict[str, tuple[NodeUsage, HostAmount | None, Preference]] = {}

    def first(self, offered: Sequence[str]) -> str | None:
        workload = self._ledger.workload()
        if workload is not self._fragmentation.workload:
            self._fragmentation = Fragmentation(workload)
            self._known.clear()
        best = min(map(self._preference, offered), default=None)
        return None if best is None else best[2]

    def _preference(self, name: str) -> Preference:
        usage, room = self._ledger.usage(name), self._ledger.host_left(name)
        assert usage is not None
        known = self._known.get(name)
        if known is None or known[0] is not usage or known[1] != room:
            level = 0
            if self._policy is NodePolicy.FGD:
                level = self._fragmentation.level(self._request, usage, ((),), room)
            found = preference(self._policy, name, node_score(usage.gpus).total, 0, level)
            known = self._known[name] = usage, room, found
        return known[2]


@dataclass(slots=True)
class Outcome:
    """Percent of all GPUs allocated when the demand reached the number of GPUs, and at the end."""

    at_100: float = 0.0
    at_end: float = 0.0
    refused: Counter[int] = field(default_factory=Counter)
    """Pods by the number of their GPUs."""


def arrive(nodes: Sequence[Node], pods: Sequence[Arrival], seed: int, policy: str, cpu_pods: str) -> Outcome:
    """Run without departures."""
    capacity = 1000 * sum(map(_gpus, nodes))
    cluster, outcome, asked_for, allocated = Cluster(nodes, policy, cpu_pods), Outcome(), 0, 0
    for number, asked in enumerate(_drawn([each.asked for each in pods], capacity * 1.3, seed)):
        asked_for += asked.amount
        if cluster.place(f"p{number}", asked):
            allocated += asked.amount
        else:
            outcome.refused[asked.gpus] += 1
        if not outcome.at_100 and asked_for >= capacity:
            outcome.at_100 = 100 * allocated / capacity
    outcome.at_end = 100 * allocated / capacity
    return outcome


def _gpus(node: Node) -> int:
    return len(decode_register(node.metadata.annotations[NODE_REGISTER]))


def _drawn(pods: Sequence[Asked], until: float, seed: int) -> list[Asked]:
    """All of them and more, in random order."""
    draw, drawn = random.Random(seed), list(pods)
    amount = sum(each.amount for each in pods)
    while amount + (more := draw.choice(pods)).amount <= until:
        drawn.append(more)
        amount += more.amount
    draw.shuffle(drawn)
    return drawn


@dataclass(slots=True)
class Waits:
    """The result for pods that come and go as in the trace."""

    allocated: float = 0.0
    """Percent of all GPUs: the mean over the time in which pods wait, or over all of it if none waits."""
    waited: list[float] = field(default_factory=list)
    """Seconds, of each pod with GPUs that was placed."""
    placed: Counter[int] = field(default_factory=Counter)
    """Pods by the number of their GPUs."""
    at_once: Counter[int] = field(default_factory=Counter)
    never: Counter[int] = field(default_factory=Counter)


def replay(nodes: Sequence[Node], pods: Sequence[Arrival], policy: str, cpu_pods: str, times: int) -> Waits:
    """Each pod comes `times` times, a second apart, and keeps its room for as long as in the trace.

    Waiting pods are tried again, the oldest first, whenever a pod has left. Of pods with the same request, one that
    finds no room stands for all.
    """
    cluster, waits = Cluster(nodes, policy, cpu_pods), Waits()
    events = [(each.at + copy, 1, number, copy) for number, each in enumerate(pods) for copy in range(times)]
    heapify(events)
    waiting: dict[str, tuple[float, Arrival]] = {}
    held = busy = crowded = last = 0.0

    def tried(uid: str, came: float, pod: Arrival, now: float) -> bool:
        if not cluster.place(uid, pod.asked):
            return False
        number, _, copy = uid.partition("-")
        heappush(events, (now + max(pod.lasts, 1.0), 0, int(number), int(copy)))
        if pod.asked.gpus:
            waits.waited.append(now - came)
            waits.placed[pod.asked.gpus] += 1
            waits.at_once[pod.asked.gpus] += now == came
        return True

    while events:
        now, comes, number, copy = heappop(events)
        if any(pod.asked.gpus for _, pod in waiting.values()):
            busy, crowded = busy + held * (now - last), crowded + now - last
        last, pod, uid = now, pods[number], f"{number}-{copy}"
        if comes:
            if tried(uid, now, pod, now):
                held += pod.asked.amount
            else:
                waiting[uid] = now, pod
            continue
        cluster.leave(uid)
        held -= pod.asked.amount
        if events and events[0][:2] == (now, 0):
            continue
        hopeless = set[Asked]()
        for name, (came, one) in list(waiting.items()):
            if one.asked not in hopeless and tried(name, came, one, now):
                held += one.asked.amount
                del waiting[name]
            else:
                hopeless.add(one.asked)
    for _, pod in waiting.values():
        waits.never[pod.asked.gpus] += 1
    waits.allocated = busy / crowded / (10 * sum(map(_gpus, nodes))) if crowded else 0.0
    return waits


@click.command(context_settings={"show_default": True})
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--workloads", default="default,gpushare100,gpuspec33", help="Comma list of pod lists in the folder.")
@click.option(
    "--policies", default="binpack/spread,binpack/binpack,fgd/fgd", help="Comma list of policies, each as node/GPU."
)
@click.option("--seeds", default="1-10", help="First and last.")
@click.option("--cpu-pods", type=click.Choice(CPU_PODS), default="policy", help="What places pods without GPUs.")
@click.option("--departures", default=0, help="Let pods come and go, each this many times; 0: no pod leaves.")
def main(*, folder: Path, workloads: str, policies: str, seeds: str, cpu_pods: str, departures: int) -> None:
    """Print a table with the published figures beside ours."""
    try:
        nodes = read_nodes(folder)
        traces = {name: read_pods(folder, name) for name in workloads.split(",")}
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    if departures:
        _print_waits(nodes, traces, policies.split(","), cpu_pods, departures)
        return
    first, _, last = seeds.partition("-")
    table = Table("pods", "policy", "at 100 %", "at 130 %", "±", "8-GPU pods refused", "published: BestFit", "FGD")
    for name, pods in traces.items():
        published = [f"{each:.2f}" for each in PUBLISHED.get(name, ())] or ["", ""]
        for policy in policies.split(","):
            runs = [arrive(nodes, pods, seed, policy, cpu_pods) for seed in range(int(first), int(last or first) + 1)]
            ends = [run.at_end for run in runs]
            spread = f"{stdev(ends):.2f}" if len(ends) > 1 else ""
            row = [f"{mean(run.at_100 for run in runs):.2f}", f"{mean(ends):.2f}", spread]
            table.add_row(name, policy, *row, f"{mean(run.refused[8] for run in runs):.1f}", *published)
    Console(width=120).print(table)


def _print_waits(
    nodes: Sequence[Node], traces: Mapping[str, Sequence[Arrival]], policies: Sequence[str], cpu_pods: str, times: int
) -> None:
    columns = ("allocated while pods wait", "mean wait h", "placed at once", "8-GPU pods at once", "never placed")
    table = Table("pods", "policy", *columns)
    for name, pods in traces.items():
        for policy in policies:
            waits = replay(nodes, pods, policy, cpu_pods, times)
            placed, large = sum(waits.placed.values()), waits.placed[8]
            table.add_row(
                name,
                policy,
                f"{waits.allocated:.2f} %",
                f"{mean(waits.waited or [0.0]) / 3600:.2f}",
                f"{100 * sum(waits.at_once.values()) / max(placed, 1):.1f} %",
                f"{waits.at_once[8]} of {large + waits.never[8]}",
                str(sum(waits.never.values())),
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
