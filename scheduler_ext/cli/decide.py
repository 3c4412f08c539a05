"""`topogpu-scheduler decide`: one decision on files, without a cluster."""

import json
import struct
import sys
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import yaml

from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Node, Object, Pod, ResourceQuota
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.policies import PolicyError, parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.scheduling.decide import Decision
from scheduler_ext.scheduling.decide import decide as decide_pod
from scheduler_ext.scheduling.score import node_score

T = TypeVar("T", bound=Object)


class StateError(ValueError):
    """A file does not hold what it should; one sentence with the place."""


@click.command(name="decide")
@click.option(
    "--state",
    "state_file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    required=True,
    help="What `kubectl get nodes,pods,resourcequotas -A -o json` prints; - reads standard input.",
)
@click.option(
    "--pod",
    "pod_file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    required=True,
    help="The pod to place, as JSON or YAML.",
)
@click.option("--output", type=click.Choice(["json", "text"]), default="text", show_default=True)
@click.option("--node-scheduler-policy", default="binpack", show_default=True, help="binpack or spread.")
@click.option(
    "--gpu-scheduler-policy",
    default="spread",
    show_default=True,
    help="binpack, spread, topology-aware, mutex, numa, or a comma list of them.",
)
@click.option("--default-mem", type=click.IntRange(0), default=0, help="MiB for containers that ask for none; 0: all.")
@click.option(
    "--default-cores", type=click.IntRange(0, 100), default=0, help="Percent for containers that ask for none."
)
@click.option("--node-names", default="", help="Comma list of the nodes to consider [default: all in the state].")
def decide(
    *,
    state_file: str,
    pod_file: str,
    output: str,
    node_scheduler_policy: str,
    gpu_scheduler_policy: str,
    default_mem: int,
    default_cores: int,
    node_names: str,
) -> None:
    """Where would this pod go, and why not elsewhere?

    Takes the decision `serve` would take on this state, changes nothing, and answers also when no node fits.
    """
    try:
        settings = RequestSettings(
            default_memory_mib=default_mem,
            default_cores=default_cores,
            node_policy=parse_node_policy(node_scheduler_policy),
            gpu_policy=parse_gpu_policy(gpu_scheduler_policy),
        )
        ledger, names = _read_state(state_file)
        pod = _object(_read(pod_file), Pod, pod_file)
        names = [name.strip() for name in node_names.split(",") if name.strip()] or names
        decision = _decide(pod, ledger, names, settings)
    except (StateError, PolicyError, RequestError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(_json(decision) if output == "json" else _text(decision))


def _decide(pod: Pod, ledger: Ledger, names: list[str], settings: RequestSettings) -> Decision:
    """A pod that asks for no GPU may go anywhere; the first node stands for all."""
    request = read_request(pod, settings)
    snapshot = ledger.snapshot(excluding_uid=pod_key(pod))
    for subject, problem in ledger.problems().items():
        click.echo(f"warning: {subject}: {problem}", err=True)
    if request is None:
        return Decision(node=names[0] if names else None, scores=_node_scores(snapshot, names))
    for warning in request.policies.warnings:
        click.echo(f"warning: {warning}", err=True)
    return decide_pod(request, snapshot, names)


def _node_scores(snapshot: Snapshot, names: list[str]) -> dict[str, float]:
    return {name: node_score(snapshot.nodes[name].gpus) for name in names if name in snapshot.nodes}


def _read_state(file: str) -> tuple[Ledger, list[str]]:
    """The ledger, and the names of all nodes in the order of the file."""
    document = _read(file)
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise StateError(f"{file}: no list of objects; write it with kubectl get nodes,pods,resourcequotas -A -o json")
    nodes: list[Node] = []
    pods: list[Pod] = []
    quotas: list[ResourceQuota] = []
    for position, item in enumerate(items):
        where = f"{file}: items[{position}]"
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind == "Node":
            nodes.append(_object(item, Node, where))
        elif kind == "Pod":
            pods.append(_object(item, Pod, where))
        elif kind == "ResourceQuota":
            quotas.append(_object(item, ResourceQuota, where))
        elif not isinstance(kind, str):
            raise StateError(f"{where}: has no kind")
    ledger = Ledger()
    ledger.replace_nodes(nodes)
    ledger.replace_pods(pods)
    ledger.replace_quotas(quotas)
    return ledger, [node.metadata.name for node in nodes]


def _read(file: str) -> object:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{file}: cannot be read: {error}") from error
    try:
        document: object = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise StateError(f"{file}: neither JSON nor YAML: {problem}") from error
    return document


def _object(document: object, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise StateError(f"{where}: {error}") from error


def _json(decision: Decision) -> str:
    return json.dumps(
        {
            "node": decision.node,
            "devices_to_allocate": encode_pod_devices(decision.shares),
            "scores": {name: _shortest(score) for name, score in decision.scores.items()},
            "failed": dict(decision.failed),
        }
    )


def _text(decision: Decision) -> str:
    devices = encode_pod_devices(decision.shares)
    lines = [f"node     {decision.node or 'none fits'}", f"devices  {devices}" if devices else "devices  none"]
    lines += [f"score    {name}  {_shortest(score)}" for name, score in sorted(decision.scores.items())]
    lines += [f"failed   {name}  {reason}" for name, reason in sorted(decision.failed.items())]
    return "\n".join([*lines, *([f"error    {decision.error}"] if decision.error else [])])


def _shortest(score: float) -> float:
    """The shortest decimal that stands for the same 32-bit number."""
    for digits in range(1, 10):
        short = float(f"{score:.{digits}g}")
        if struct.pack("f", short) == struct.pack("f", score):
            return short
    return score
