"""The demo's outcome for people: what was found, what was decided, what every container got, and why."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from program.tables import Column, FittingTable, Matrix
from program.words import counted
from proto.annotations.keys import DEVICES_ALLOCATED
from simulation.outcome import ContainerOutcome, DemoOutcome, NodeOutcome, PodOutcome

MOST_LISTED = 40
"""Pods that are shown one by one."""
_MOST_REASONS = 10
_LINK_STYLES = {"X": "dim", "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}


def as_json(outcome: DemoOutcome) -> str:
    """Returns one object: pods, placements, what containers got, pending reasons, verification, seconds."""
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
    """Values that people copy (annotations, variables) are left to the terminal to wrap: whole ids, no breaks.

    Machines of one kind are shown once. Beyond MOST_LISTED pods, kinds of pods are counted.
    """
    for alike in _by_machine(outcome.nodes):
        console.print(Text.assemble((", ".join(node.name for node in alike), "bold"), "  ", alike[0].title))
        console.print(Padding(_link_matrix(alike[0]), (0, 0, 1, 2), expand=False))
    console.print(_pod_table(outcome.pods) if len(outcome.pods) <= MOST_LISTED else _kind_table(outcome.pods))
    console.print()
    for line in [*_waiting_lines(outcome.pods), *_example_lines(outcome.pods)]:
        console.print(line, soft_wrap=True)
    console.print(_verdict(outcome), soft_wrap=True)


def _by_machine(nodes: Sequence[NodeOutcome]) -> Iterable[Sequence[NodeOutcome]]:
    alike: dict[str, list[NodeOutcome]] = {}
    for node in nodes:
        alike.setdefault(node.machine, []).append(node)
    return alike.values()


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


def _annotation_line(key: str, value: str) -> Text:
    return Text.assemble("  ", (key, "cyan"), ": ", (value, "dim"))


def _link_matrix(node: NodeOutcome) -> Matrix:
    """Names without "GPU", so that 16 GPUs fit on a narrow terminal."""
    labels = [str(device.index) for device in node.devices]
    rows: list[tuple[str | Text, ...]] = [
        (
            f"GPU {device.index}",
            *(Text(token, style=_LINK_STYLES.get(token, "bold cyan")) for token in row),
            str(device.numa),
        )
        for device, row in zip(node.devices, node.links, strict=True)
    ]
    return Matrix(columns=[Column(title=title, right=True) for title in ("", *labels, "NUMA")], rows=rows)


def _pod_table(pods: Sequence[PodOutcome]) -> FittingTable:
    rows: list[tuple[str | Text, ...]] = []
    for pod in pods:
        for position, cells in enumerate(_container_rows(pod)):
            named = (pod.name, pod.node or pod.phase) if position == 0 else ("", "")
            why = (pod.choice or pod.why) if position == 0 else ""
            style = "" if pod.phase == "Running" else "yellow"
            rows.append(tuple(Text(cell, style) for cell in (*named, *cells, why)))
    columns = (
        Column(title="pod"),
        Column(title="node"),
        Column(title="container", rank=2),
        Column(title="GPUs"),
        Column(title="MiB, cores each", rank=1),
        Column(title="why", wraps=True),
    )
    return FittingTable(columns=columns, rows=rows, title="Pods", more="--json shows all.")


def _kind_table(pods: Sequence[PodOutcome]) -> FittingTable:
    kinds: dict[str, list[PodOutcome]] = {}
    for pod in pods:
        kinds.setdefault(pod.why, []).append(pod)
    rows = []
    for why, alike in kinds.items():
        running = [pod for pod in alike if pod.phase == "Running"]
        nodes = {pod.node for pod in running}
        rows.append((why, str(len(alike)), str(len(running)), str(len(alike) - len(running)), str(len(nodes))))
    columns = (
        Column(title="pods", wraps=True),
        *(Column(title=title, right=True) for title in ("asked", "running", "waiting", "on nodes")),
    )
    return FittingTable(columns=columns, rows=rows, title=f"{len(pods)} pods; --json lists each")


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
    """Pods that wait for the same reason share a line, and so do nodes that refuse them for the same reason."""
    alike: dict[tuple[str, str, str], list[PodOutcome]] = {}
    for pod in pods:
        if pod.phase != "Running":
            alike.setdefault((pod.phase, pod.why, pod.reason), []).append(pod)
    shown = list(alike.items())[:_MOST_REASONS]
    for (phase, why, reason), waiting in shown:
        more = f" and {len(waiting) - 1} more like it are" if len(waiting) > 1 else " is"
        yield Text.assemble((f"{waiting[0].name}{more} {phase}", "bold yellow"), f" ({why}): {reason}")
        nodes: dict[str, list[str]] = {}
        for node, refusal in waiting[0].refusals.items():
            nodes.setdefault(refusal, []).append(node)
        for refusal, names in nodes.items():
            yield Text(f"  {', '.join(names)}: {refusal}")
    if len(alike) > len(shown):
        rest = sum(len(waiting) for _, waiting in list(alike.items())[_MOST_REASONS:])
        yield Text(f"{counted(rest, 'more pod')} wait for other reasons; --json shows them.", "yellow")


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
    pods, nodes = counted(len(outcome.pods), "pod"), counted(len(outcome.nodes), "node")
    facts = f"\n{running} of {pods} running on {nodes}, {outcome.seconds:.1f} s."
    kept = f"\nLogs and kubeconfig are kept in {outcome.kept_directory}." if outcome.kept_directory else ""
    if outcome.violations:
        problems = "".join(f"\n  {problem}" for problem in outcome.violations)
        return Text.assemble(facts, (f"\nVerification FAILED:{problems}", "bold red"), kept)
    passed = (
        "\nVerified: every container has exactly the GPUs and limits of its annotation; no GPU was over-booked; "
        "the published link scores are those of the machines."
    )
    return Text.assemble(facts, (passed, "bold green"), kept)
