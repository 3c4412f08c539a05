"""The demo's outcome for people: what was found, what was decided, what every container got, and why."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proto.annotations.keys import DEVICES_ALLOCATED, NODE_ALLOCATION, NODE_REGISTER, NODE_SCORE
from simulation.outcome import ContainerOutcome, DemoOutcome, NodeOutcome, PodOutcome

_SHOWN_CHARACTERS = 190
_LINK_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}


def as_json(outcome: DemoOutcome) -> str:
    """One object: pods, placements, what containers got, pending reasons, verification, seconds."""
    document = {
        "nodes": [
            {
                "name": node.name,
                "machine": node.machine,
                "gpus": len(node.devices),
                "annotations": dict(node.annotations),
                "links": [list(row) for row in node.links],
            }
            for node in outcome.nodes
        ],
        "pods": [_pod_document(pod) for pod in outcome.pods],
        "verification": {"passed": not outcome.violations, "violations": list(outcome.violations)},
        "kept_directory": outcome.kept_directory or None,
        "seconds": outcome.seconds,
    }
    return json.dumps(document, indent=2)


def print_report(console: Console, outcome: DemoOutcome) -> None:
    """Values that people copy (annotations, variables) are left to the terminal to wrap: whole ids, no breaks."""
    for node in outcome.nodes:
        console.print(Text.assemble((node.name, "bold"), "  ", node.title), soft_wrap=True)
        console.print(Padding(_link_table(node), (0, 0, 0, 2)))
        for key in (NODE_REGISTER, NODE_SCORE, NODE_ALLOCATION):
            console.print(_annotation_line(key, _shortened(node.annotations.get(key, ""))), soft_wrap=True)
        console.print()
    console.print(_pod_table(outcome.pods))
    for line in [*_waiting_lines(outcome.pods), *_example_lines(outcome.pods)]:
        console.print(line, soft_wrap=True)
    console.print(_verdict(outcome), soft_wrap=True)


def _pod_document(pod: PodOutcome) -> dict[str, object]:
    return {
        "name": pod.name,
        "shape": pod.why,
        "phase": pod.phase,
        "node": pod.node or None,
        "reason": pod.reason or None,
        "choice": pod.choice or None,
        "refusals": dict(pod.refusals),
        "annotations": dict(pod.annotations),
        "containers": [asdict(container) for container in pod.containers],
    }


def _shortened(value: str) -> str:
    """Cut behind a comma, so that an id is either shown whole or not at all."""
    if len(value) <= _SHOWN_CHARACTERS:
        return value
    return f"{value[: value.rfind(',', 0, _SHOWN_CHARACTERS) + 1]}… ({len(value)} characters)"


def _annotation_line(key: str, value: str) -> Text:
    return Text.assemble("  ", (key, "cyan"), ": ", (value, "dim"))


def _link_table(node: NodeOutcome) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for device in node.devices:
        table.add_column(f"GPU{device.index}", justify="right")
    table.add_column("NUMA", justify="right")
    for device, row in zip(node.devices, node.links, strict=True):
        cells = [Text(token, style=_LINK_STYLES.get(token, "bold cyan")) for token in row]
        table.add_row(f"GPU{device.index}", *cells, str(device.numa))
    return table


def _pod_table(pods: Sequence[PodOutcome]) -> Table:
    """Only the last column may wrap: names are there to be copied."""
    table = Table(title="Pods", title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    for heading in ("pod", "node", "container", "GPUs", "MiB, cores each"):
        table.add_column(heading, no_wrap=True)
    table.add_column("why")
    for pod in pods:
        for position, cells in enumerate(_container_rows(pod)):
            named = (pod.name, pod.node or pod.phase) if position == 0 else ("", "")
            why = (pod.choice or pod.why) if position == 0 else ""
            table.add_row(*named, *cells, why, style="" if pod.phase == "Running" else "yellow")
    return table


def _container_rows(pod: PodOutcome) -> Iterable[tuple[str, str, str]]:
    if not pod.containers:
        return [("-", "-", "-")]
    return [_container_row(container) for container in pod.containers]


def _container_row(container: ContainerOutcome) -> tuple[str, str, str]:
    name = f"{container.name} (init)" if container.phase == "init" else container.name
    if not container.gpus:
        return name, "none", "-"
    indices = ",".join(str(gpu.index) for gpu in container.gpus)
    limits = dict.fromkeys(f"{gpu.memory_mib}, {f'{gpu.cores} %' if gpu.cores else 'any'}" for gpu in container.gpus)
    return name, indices, "; ".join(limits)


def _waiting_lines(pods: Sequence[PodOutcome]) -> Iterable[Text]:
    for pod in pods:
        if pod.phase != "Running":
            yield Text.assemble((f"{pod.name} is {pod.phase}", "bold yellow"), f" ({pod.why}): {pod.reason}")
            for node, refusal in pod.refusals.items():
                yield Text(f"  {node}: {refusal}")


def _example_lines(pods: Sequence[PodOutcome]) -> Iterable[Text]:
    first = next((pod for pod in pods if pod.phase == "Running" and DEVICES_ALLOCATED in pod.annotations), None)
    if first is not None:
        yield Text(f"\n{first.name}: from the annotation to the container", style="bold")
        yield _annotation_line(DEVICES_ALLOCATED, first.annotations[DEVICES_ALLOCATED])
        for container in first.containers:
            for key, value in sorted(container.env.items()):
                yield Text.assemble(f"  {container.name}  ", (key, "cyan"), "=", value)


def _verdict(outcome: DemoOutcome) -> Text:
    running = sum(pod.phase == "Running" for pod in outcome.pods)
    facts = f"\n{running} of {len(outcome.pods)} pods running on {len(outcome.nodes)} nodes, {outcome.seconds:.1f} s."
    kept = f"\nLogs and kubeconfig are kept in {outcome.kept_directory}." if outcome.kept_directory else ""
    if outcome.violations:
        problems = "".join(f"\n  {problem}" for problem in outcome.violations)
        return Text.assemble(facts, (f"\nVerification FAILED:{problems}", "bold red"), kept)
    passed = (
        "\nVerified: every container has exactly the GPUs and limits of its annotation; no GPU was over-booked; "
        "the published link scores are those of the machines."
    )
    return Text.assemble(facts, (passed, "bold green"), kept)
