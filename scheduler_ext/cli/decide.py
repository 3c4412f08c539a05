"""`topogpu-scheduler decide`: one decision on files, without a cluster."""

import json
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import yaml

from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Node, Object, Pod, ResourceQuota
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.policies import PolicyError, alias_warnings, parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.scheduling.decide import Decision
from scheduler_ext.scheduling.decide import decide as decide_pod

T = TypeVar("T", bound=Object)

ANY_NODE = "the pod asks for no GPU: any node fits, and kube-scheduler chooses"


class StateError(ValueError):
    """A file does not hold what it should; one sentence with the place."""


@click.command(name="decide")
@click.option(
    "--state",
    "state_file",
    type=click.Path(allow_dash=True),
    required=True,
    help="What `kubectl get nodes,pods,resourcequotas -A -o json` prints; - reads standard input.",
)
@click.option(
    "--pod",
    "pod_file",
    type=click.Path(allow_dash=True),
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
        _warn(alias_warnings(gpu_scheduler_policy))
        if state_file == pod_file == "-":
            raise StateError("--state and --pod cannot both be standard input; name a file for one of them")
        ledger, names = _read_state(state_file)
        pod = _read_pod(pod_file)
    except (StateError, PolicyError) as error:
        raise click.ClickException(str(error)) from error
    names = [name.strip() for name in node_names.split(",") if name.strip()] or names
    show = _json if output == "json" else _text
    try:
        answer = _decide(pod, ledger, names, settings)
    except RequestError as error:
        if output == "json":
            click.echo(show(_Answer(decision=Decision(node=None), error=str(error))))
        raise click.ClickException(str(error)) from error
    click.echo(show(answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """`error` is why no node was even looked at, or why none fits; `note` says that any other would do."""

    decision: Decision
    error: str = ""
    note: str = ""


def _decide(pod: Pod, ledger: Ledger, names: list[str], settings: RequestSettings) -> _Answer:
    """Raises RequestError for a pod whose request cannot be read."""
    _warn(f"{subject}: {problem}" for subject, problem in ledger.problems().items())
    request = read_request(pod, settings)
    if request is None:
        return _Answer(decision=Decision(node=names[0], scores=dict.fromkeys(names, 0.0)), note=ANY_NODE)
    _warn(request.policies.warnings)
    decision = decide_pod(request, ledger.snapshot(excluding_uid=pod_key(pod)), names)
    none_fits = f"none of {len(names)} nodes fits the pod" if decision.node is None else ""
    return _Answer(decision=decision, error=decision.error or none_fits)


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _read_pod(file: str) -> Pod:
    document = _read(file)
    if not isinstance(document, dict):
        raise StateError(f"{file}: holds no pod; write it with kubectl get pod NAME -o json")
    if "kind" not in document and "spec" not in document:
        raise StateError(f"{file}: holds an object without kind and spec, where one Pod is expected")
    if document.get("kind", "Pod") != "Pod":
        raise StateError(f"{file}: holds a {document['kind']} where one Pod is expected")
    return _object(document, Pod, file)


def _read_state(file: str) -> tuple[Ledger, list[str]]:
    """The ledger, and the names of all nodes in the order of the file."""
    document = _read(file)
    items = document.get("items") if isinstance(document, dict) else None
    if isinstance(document, dict) and document.get("kind") == "Node":
        items = [document]
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
    if not nodes:
        raise StateError(f"{file}: lists no node; write it with kubectl get nodes,pods,resourcequotas -A -o json")
    ledger = Ledger()
    ledger.replace_nodes(nodes)
    ledger.replace_pods(pods)
    ledger.replace_quotas(quotas)
    return ledger, [node.metadata.name for node in nodes]


def _read(file: str) -> object:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise StateError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StateError(f"{file}: is not UTF-8 text") from error
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
    except RecursionError as error:
        raise StateError(f"{where}: contains itself") from error


def _json(answer: _Answer) -> str:
    """`error` and `note` appear only when there is something to say."""
    decision = answer.decision
    document: dict[str, object] = {
        "node": decision.node,
        "devices_to_allocate": encode_pod_devices(decision.shares),
        "scores": {name: _shortest(score) for name, score in decision.scores.items()},
        "failed": dict(decision.failed),
    }
    remarks = {"error": answer.error, "note": answer.note}
    return json.dumps(document | {key: text for key, text in remarks.items() if text}, ensure_ascii=False)


def _text(answer: _Answer) -> str:
    decision = answer.decision
    devices = encode_pod_devices(decision.shares)
    lines = [f"node     {decision.node or 'none fits'}", f"devices  {devices or 'none'}"]
    lines += [f"score    {name}  {_shortest(score)}" for name, score in sorted(decision.scores.items())]
    lines += [f"failed   {name}  {reason}" for name, reason in sorted(decision.failed.items())]
    lines += [f"error    {answer.error}"] if answer.error else []
    lines += [f"note     {answer.note}"] if answer.note else []
    return "\n".join(lines)


def _shortest(score: float) -> float:
    """The shortest decimal that stands for the same 32-bit number."""
    for digits in range(1, 10):
        short = float(f"{score:.{digits}g}")
        if struct.pack("f", short) == struct.pack("f", score):
            return short
    return score
