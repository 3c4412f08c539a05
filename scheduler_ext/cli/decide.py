"""`topogpu-scheduler decide`: takes decisions on files or lines, without a cluster."""

import json
import sys
from collections.abc import Iterable, Iterator

import click
from rich.console import Console

from program.settings.options import GroupedCommand, read_configuration, setting_options
from proto.kubernetes.objects import Pod
from scheduler_ext.cli.answers import Answer, answer_document, answer_text, explanation_table
from scheduler_ext.cli.build import request_settings, warnings
from scheduler_ext.cli.replay import replay
from scheduler_ext.cli.state import StateError, read_document, read_pod, read_snapshot, read_state
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.configuration import REQUESTS, TABLE
from scheduler_ext.requests import RequestError, RequestSettings, read_request
from scheduler_ext.scheduling.decide import Decision
from scheduler_ext.scheduling.decide import decide as decide_pod
from scheduler_ext.scheduling.explain import explain as explain_decision
from scheduler_ext.scheduling.score import UNSCORED

ANY_NODE = "the pod asks for no GPU: any node fits, and kube-scheduler chooses"
_PIPE_WIDTH = 1000


@click.command(name="decide", cls=GroupedCommand)
@click.option(
    "--state",
    "state_file",
    type=click.Path(allow_dash=True),
    help="Output of `kubectl get nodes,pods,resourcequotas -A -o json`; - reads standard input.",
)
@click.option(
    "--snapshot",
    "snapshot_file",
    type=click.Path(allow_dash=True),
    help="Instead of --state: the extender's answer to /debug/snapshot; - reads standard input.",
)
@click.option("--pod", "pod_file", type=click.Path(allow_dash=True), help="The pod to place, as JSON or YAML.")
@click.option("--output", type=click.Choice(["json", "text"]), default="text", show_default=True)
@click.option(
    "--explain", is_flag=True, help="Show the reason for every node: its score, or what each of its GPUs lacks."
)
@click.option("--node-names", default="", help="Comma list of the nodes to consider [default: all in the state].")
@setting_options(TABLE, groups=(REQUESTS,))
def decide(
    *,
    state_file: str | None,
    snapshot_file: str | None,
    pod_file: str | None,
    output: str,
    explain: bool,
    node_names: str,
    **given: object,
) -> None:
    """Show where this pod would go, and why not elsewhere.

    Takes the same decision as `serve` would on this state, and changes nothing. It answers also if no node fits.

    Without --state, --snapshot and --pod it reads JSON lines from standard input and answers each with a line of JSON.
    A line holds a state and a pod, or the GPUs of one node and containers.
    """
    effective = read_configuration(TABLE, given)
    requests = request_settings(effective.configuration)
    _warn(warnings(effective))
    if state_file is None and snapshot_file is None and pod_file is None:
        if explain or node_names:
            raise click.UsageError("--explain and --node-names go with --state and --pod")
        _replay(requests)
        return
    if state_file is not None and snapshot_file is not None:
        raise click.UsageError("--state and --snapshot both describe the cluster; give one of them")
    try:
        if snapshot_file is not None:
            pod, snapshot = _read_snapshot_files(snapshot_file, pod_file)
            names = [*snapshot.nodes, *snapshot.unregistered]
        else:
            pod, ledger, names = _read_files(state_file, pod_file, requests)
            _warn(f"{subject}: {problem}" for subject, problem in ledger.problems().items())
            snapshot = ledger.snapshot_for(pod)
    except StateError as error:
        raise click.ClickException(str(error)) from error
    names = [name.strip() for name in node_names.split(",") if name.strip()] or names
    try:
        _show(_decide(pod, snapshot, names, requests, explain=explain), output)
    except RequestError as error:
        if output == "json":
            _show(Answer(decision=Decision(node=None), error=str(error)), output)
        raise click.ClickException(str(error)) from error


def _replay(settings: RequestSettings) -> None:
    """Each answer is written before the next line is read."""
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("give --state and --pod, or JSON lines on standard input")
    for answer in replay(_lines(), settings):
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


def _lines() -> Iterator[bytes]:
    try:
        yield from sys.stdin.buffer
    except OSError as error:
        raise click.ClickException(f"standard input cannot be read: {error.strerror or error}") from error


def _decide(pod: Pod, snapshot: Snapshot, names: list[str], settings: RequestSettings, *, explain: bool) -> Answer:
    """Take the decision. Raises RequestError if the pod's request cannot be read."""
    request = read_request(pod, settings)
    if request is None:
        return Answer(decision=Decision(node=names[0], fits=dict.fromkeys(names, UNSCORED)), note=ANY_NODE)
    _warn(request.policies.warnings)
    decision = decide_pod(request, snapshot, names)
    none_fits = f"none of {len(names)} nodes fits the pod" if decision.node is None else ""
    explanation = explain_decision(request, decision) if explain else ()
    return Answer(decision=decision, explanation=explanation, error=decision.error or none_fits)


def _warn(sentences: Iterable[str]) -> None:
    for warning in sentences:
        click.echo(f"warning: {warning}", err=True)


def _show(answer: Answer, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(answer_document(answer), ensure_ascii=False))
        return
    click.echo(answer_text(answer))
    if answer.explanation:
        # In a pipe the table is never wrapped: a program or a pager reads it.
        console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        console.print(explanation_table(answer.explanation))


def _read_files(
    state_file: str | None, pod_file: str | None, settings: RequestSettings
) -> tuple[Pod, Ledger, list[str]]:
    """Read both files. Raises StateError."""
    if state_file is None or pod_file is None:
        missing = "--state" if state_file is None else "--pod"
        raise StateError(f"{missing} is missing; give both --state and --pod, or neither and JSON lines")
    if state_file == pod_file == "-":
        raise StateError("--state and --pod cannot both be standard input; name a file for one of them")
    ledger, names = read_state(read_document(state_file), state_file, settings)
    return read_pod(read_document(pod_file), pod_file), ledger, names


def _read_snapshot_files(snapshot_file: str, pod_file: str | None) -> tuple[Pod, Snapshot]:
    """Read both files. Raises StateError."""
    if pod_file is None:
        raise StateError("--pod is missing; give both --snapshot and --pod")
    if snapshot_file == pod_file == "-":
        raise StateError("--snapshot and --pod cannot both be standard input; name a file for one of them")
    snapshot = read_snapshot(read_document(snapshot_file), snapshot_file)
    return read_pod(read_document(pod_file), pod_file), snapshot
