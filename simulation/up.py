"""A simulated cluster that keeps running, for people to try things on (edge)."""

import asyncio
import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from urllib.parse import urlsplit

from program.tasks import until_first
from program.words import counted
from simulation.apiserver.errors import ApiRefusal
from simulation.cluster import SYSTEM_NAMESPACE, ClusterSettings, SimulatedCluster, machine_kinds, simulated_cluster
from simulation.controllers.steps import REVISION, digest_of
from simulation.processes import ChildProcess
from simulation.workload import NAMESPACE, SHAPES, Shape, pod_object, sample_pod

_RECOVERY_SECONDS = 5
"""Seconds for which a mended GPU is watched before it counts as healthy; a minute in production."""
_MOST_LOAD_PODS = 500
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_SETTLED_SECONDS = 30.0
_TIDY_SECONDS = 60.0
_EVENT_LIFE = timedelta(hours=1)
"""The time for which kube-apiserver keeps events."""
_KEPT_REQUESTS = 1000
_SUMMARY_SECONDS = 10.0
_DAEMON_SET = "topogpu-device-plugin"
SAMPLE = "pod.yaml"
"""The file in the cluster's directory with a pod to apply."""
TARGETS = "metrics.json"
"""The file in the cluster's directory with the addresses of all metrics, for Prometheus' file_sd_configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """`load` is pods a minute; the others are those of the demo."""

    machines: tuple[str, ...] = ()
    nodes: int | None = None
    api_port: int = 0
    load: float = 0.0
    seed: int = 0


async def run_up(
    settings: UpSettings,
    announce: Callable[[str], None],
    progress: Callable[[str], None],
    now: Callable[[], datetime],
) -> None:
    """Runs until it is cancelled, and then stops and removes everything. Raises SimulationFailed."""
    placed = machine_kinds(settings.machines, settings.nodes)
    simulated = ClusterSettings(
        machines=tuple(each.kind for each in placed),
        labels=tuple(each.labels for each in placed),
        api_port=settings.api_port,
        checks=False,
        default_scheduler=True,
        status_page=True,
        metrics=True,
        pods_end=True,
        daemon_options=("--remediation-seconds", str(10 * _RECOVERY_SECONDS)),
    )
    async with simulated_cluster(simulated, progress, now) as cluster:
        (cluster.directory / SAMPLE).write_text(json.dumps(sample_pod(), indent=2) + "\n")
        show_daemons(cluster)
        show_extender(cluster)
        (cluster.directory / TARGETS).write_text(json.dumps(targets(cluster), indent=2) + "\n")
        announce(welcome(cluster))
        works = [_keep_running(cluster, process) for process in cluster.processes]
        if settings.load:
            works += [_load(cluster, settings), _summarise(cluster)]
        await until_first(*works, _tidy(cluster))


def show_daemons(cluster: SimulatedCluster) -> None:
    """Shows the daemons as the pods of a DaemonSet, whose port with metrics is reached through the API server."""
    labels = {"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "device-plugin"}
    container = {"name": "device-plugin", "image": "topogpu:simulated"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
    }
    made = cluster.server.create(
        {
            "kind": "DaemonSet",
            "metadata": {"name": _DAEMON_SET, "namespace": SYSTEM_NAMESPACE},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": template,
                # The programs are the simulation's own: no other pod can take their place.
                "updateStrategy": {"type": "OnDelete"},
            },
        }
    )
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": _DAEMON_SET, "controller": True}
    owner["uid"] = made["metadata"]["uid"]
    labels = labels | {REVISION: digest_of(made["spec"]["template"])}
    for node in cluster.nodes:
        if node.name in cluster.metrics:
            name, address = f"{_DAEMON_SET}-{node.name}", urlsplit(cluster.metrics[node.name])
            ports = [{"name": "metrics", "containerPort": address.port}]
            cluster.server.create(
                {
                    "kind": "Pod",
                    "metadata": {
                        "name": name,
                        "namespace": SYSTEM_NAMESPACE,
                        "labels": labels,
                        "ownerReferences": [owner],
                    },
                    "spec": {"nodeName": node.name, "containers": [container | {"ports": ports}]},
                }
            )
            status = {"status": {"podIP": address.hostname}}
            cluster.server.patch("pods", name, status, namespace=SYSTEM_NAMESPACE, subresource="status")
            cluster.server.proxied[SYSTEM_NAMESPACE, name] = cluster.metrics[node.name]


def show_extender(cluster: SimulatedCluster) -> None:
    """Shows the extender as a static pod of the first node: what it runs with is read of its arguments."""
    arguments = next(each.arguments for each in cluster.processes if each.name == "extender")
    labels = {"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "scheduler"}
    metadata = {"name": "topogpu-scheduler", "namespace": SYSTEM_NAMESPACE, "labels": labels}
    container = {"name": "extender", "image": "topogpu:simulated", "args": arguments[1:]}
    cluster.server.create(
        {
            "kind": "Pod",
            # Without a controller, kubectl drain passes over static pods alone.
            "metadata": {**metadata, "annotations": {"kubernetes.io/config.mirror": "simulated"}},
            "spec": {"nodeName": cluster.nodes[0].name, "containers": [container]},
        }
    )


def targets(cluster: SimulatedCluster) -> list[dict[str, object]]:
    """Returns what Prometheus reads of a file with targets; daemons have the label `node`, as the chart gives it."""
    found: list[dict[str, object]] = []
    for name, address in cluster.metrics.items():
        labels = {"job": "topogpu-scheduler"} if name == "extender" else {"job": "topogpu-device-plugin", "node": name}
        found.append({"targets": [urlsplit(address).netloc], "labels": labels})
    return found


def welcome(cluster: SimulatedCluster) -> str:
    first = next((node for node in cluster.nodes if node.machine.gpus), cluster.nodes[0])
    nodes = counted(len(cluster.nodes), "simulated node")
    return f"""
{nodes} with {counted(sum(len(node.machine.gpus) for node in cluster.nodes), "GPU")}. In another terminal:

  export KUBECONFIG={cluster.kubeconfig}

The status page, for a browser: {cluster.page}/
Metrics of the extender: {cluster.metrics["extender"]}/metrics
Those of all programs, for Prometheus' file_sd_configs: {cluster.directory / TARGETS}

Try:

  kubectl get nodes
  kubectl apply -f {cluster.directory / SAMPLE}
  kubectl get pods -w
  kubectl describe pod sample
  kubectl create job sleeper --image=busybox -- sleep 10
  kubectl topogpu top
  kubectl topogpu why sample
  topogpu-sim break {first.name} 0 xid79
  topogpu-sim mend {first.name} 0

Containers run nothing: those of a Job succeed after a while, or after the time of their command `sleep`.
Logs of the programs are in {cluster.directory}.
Ctrl-C stops everything and removes it.
"""


async def _keep_running(cluster: SimulatedCluster, process: ChildProcess) -> None:
    """Starts a program again when it has ended, as its DaemonSet or Deployment would."""
    pause, clock = _FIRST_PAUSE_SECONDS, asyncio.get_running_loop().time
    while True:
        begun = clock()
        status = await process.ended()
        if clock() - begun >= _SETTLED_SECONDS:
            pause = _FIRST_PAUSE_SECONDS
        cluster.progress(
            f"{process.name} ended with status {status}; it starts again in {pause:g} s. Its log is {process.log}"
        )
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        await process.start_again()


async def _load(cluster: SimulatedCluster, settings: UpSettings) -> None:
    """Creates pods and deletes them when their time is over; at most _MOST_LOAD_PODS are there at once."""
    clock = asyncio.get_running_loop().time
    leaving: list[tuple[float, int, str]] = []
    due, order = clock(), count()
    for arrival in arrivals(settings.load, Random(settings.seed)):  # noqa: S311 - a load, not a secret
        due = max(due, clock()) + arrival.after_seconds
        while leaving and (leaving[0][0] <= due or len(leaving) >= _MOST_LOAD_PODS):
            until, _, name = heapq.heappop(leaving)
            await asyncio.sleep(max(until - clock(), 0))
            _delete(cluster, name)
        await asyncio.sleep(max(due - clock(), 0))
        try:
            cluster.server.create(pod_object(arrival.name, arrival.shape))
        except ApiRefusal as refusal:
            cluster.progress(f"the load's pod {arrival.name} was refused: {refusal}")
        else:
            heapq.heappush(leaving, (clock() + arrival.lasts_seconds, next(order), arrival.name))


def _delete(cluster: SimulatedCluster, name: str) -> None:
    """Somebody else may have deleted it."""
    try:
        cluster.server.delete("pods", name, namespace=NAMESPACE, options={})
    except ApiRefusal:
        return


async def _summarise(cluster: SimulatedCluster) -> None:
    told = ""
    while True:
        await asyncio.sleep(_SUMMARY_SECONDS)
        pods = list(cluster.view.pods.values())
        running = sum(pod.is_running for pod in pods)
        said = f"{counted(len(pods), 'pod')}: {running} running, {len(pods) - running} not"
        if said != told:
            cluster.progress(said)
        told = said


async def _tidy(cluster: SimulatedCluster) -> None:
    """Keeps memory bounded over days: forgets old events, requests, and the containers of pods that are gone."""
    while True:
        await asyncio.sleep(_TIDY_SECONDS)
        tidy(cluster)


def tidy(cluster: SimulatedCluster) -> None:
    server, before = cluster.server, cluster.now() - _EVENT_LIFE
    del server.requests[:-_KEPT_REQUESTS]
    for event in server.store.objects("events"):
        written = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
        if datetime.fromisoformat(written).astimezone(UTC) < before:
            metadata = event["metadata"]
            server.delete("events", metadata["name"], namespace=metadata["namespace"])
    present = {pod.metadata.uid for pod in cluster.view.pods.values()}
    for node in cluster.nodes:
        for uid in [uid for uid in node.kubelet.created if uid not in present]:
            del node.kubelet.created[uid]


_LASTS_SECONDS = (30.0, 300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPod:
    """A pod that comes so long after the one before it, and is deleted `lasts_seconds` later."""

    name: str
    shape: Shape
    after_seconds: float
    lasts_seconds: float


def arrivals(pods_per_minute: float, random: Random) -> Iterator[LoadPod]:
    """Yields endless: pods of the demo's shapes, at random times and for random durations."""
    number = 0
    while True:
        number += 1
        shape = random.choice(SHAPES)
        yield LoadPod(
            name=f"load-{number}-{shape.name}",
            shape=shape,
            after_seconds=random.expovariate(pods_per_minute / 60),
            lasts_seconds=random.uniform(*_LASTS_SECONDS),
        )
