"""Measures how many GPUs of a real cluster are allocated, and how long pods wait, by policy.

Run it with `python -m benchmarks.packing FOLDER`, the folder as `benchmarks.openb` reads it. Pods arrive in random
order: all pods of the trace once, then random ones, until 130 % of all GPUs are requested. None leaves. With
`--departures` pods come and go.

`benchmarks.trace_replay` names what is simulated. The rest is the extender's own code.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.openb import TraceError, read_nodes, read_pods
from benchmarks.trace_replay import CpuPods, arrive, come_and_go

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: pods of one list in one order, with one policy. With a `load` they come and go."""

    pods: str
    policy: str
    cpu_pods: CpuPods
    load: float = 0.0
    seed: int = 1

    def result(self, folder: Path) -> Mapping[str, float]:
        nodes, pods = _nodes(folder), _pods(folder, self.pods)
        if self.load:
            return come_and_go(nodes, pods, self.seed, self.policy, self.cpu_pods, load=self.load)
        return arrive(nodes, pods, self.seed, self.policy, self.cpu_pods)


_nodes = lru_cache(read_nodes)
_pods = lru_cache(read_pods)


class Results:
    """Results of runs, each a line of JSON in a file, if there is one: a run that it knows is not repeated."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[Run, Mapping[str, float]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                read = json.loads(line)
                run = {**read["run"], "cpu_pods": CpuPods(read["run"]["cpu_pods"])}
                self._known[Run(**run)] = read["result"]

    def __contains__(self, run: Run) -> bool:
        return run in self._known

    def put(self, run: Run, result: Mapping[str, float]) -> None:
        self._known[run] = result
        if self._path is not None:
            with self._path.open("a") as lines:
                lines.write(json.dumps({"run": asdict(run), "result": result}) + "\n")

    def of(self, runs: Sequence[Run]) -> Mapping[str, Sequence[float]] | None:
        """Returns values by name of the figure; None unless all runs are known."""
        if not all(run in self._known for run in runs):
            return None
        found = [self._known[run] for run in runs]
        return {name: [each[name] for each in found] for name in found[0]}


@click.command(context_settings={"show_default": True})
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--workloads", default="default,gpushare100,gpuspec33", help="Comma list of pod lists in the folder.")
@click.option("--policies", default="binpack/binpack,fgd/fgd", help="Comma list of policies, each as node/GPU.")
@click.option("--seeds", default="1-10", help="First and last order of the pods.")
@click.option(
    "--cpu-pods", default="policy", help=f"Comma list of what places pods without GPUs: {', '.join(CpuPods)}."
)
@click.option(
    "--departures", default="", help="Comma list of loads, such as 0.9: pods come and go. Empty: none leaves."
)
@click.option("--processes", default=1, help="Runs at the same time.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="File of all results.")
def main(
    *,
    folder: Path,
    workloads: str,
    policies: str,
    seeds: str,
    cpu_pods: str,
    departures: str,
    processes: int,
    results: Path | None,
) -> None:
    """Print a table with the published figures beside ours, each row as soon as its runs are done."""
    first, _, last = seeds.partition("-")
    rows = [
        [
            Run(pods=pods, policy=policy, cpu_pods=CpuPods(places), load=float(load or 0), seed=seed)
            for seed in range(int(first), int(last or first) + 1)
        ]
        for pods in workloads.split(",")
        for places in cpu_pods.split(",")
        for load in departures.split(",")
        for policy in policies.split(",")
    ]
    known = Results(results)
    click.echo(_line(WAITS if departures else ARRIVALS))
    try:
        for runs in _done(folder, rows, known, processes):
            figures = known.of(runs)
            if figures is not None:
                click.echo(_line(_waits(runs[0], figures) if departures else _arrivals(runs[0], figures)))
    except TraceError as error:
        raise click.ClickException(str(error)) from error


def _done(folder: Path, rows: Sequence[Sequence[Run]], known: Results, processes: int) -> Iterator[Sequence[Run]]:
    """Yields the rows, each when all of its runs are known."""
    missing = [run for runs in rows for run in runs if run not in known]
    console = Console(stderr=True)
    with Progress(console=console) as progress, ProcessPoolExecutor(processes) as pool:
        task = progress.add_task("runs", total=len(missing))
        yield from (runs for runs in rows if not set(runs).intersection(missing))
        left = {number: set(runs).intersection(missing) for number, runs in enumerate(rows)}
        begun = {pool.submit(run.result, folder): run for run in missing}
        for done in as_completed(begun):
            known.put(begun[done], done.result())
            progress.advance(task)
            for number, waits_for in left.items():
                if begun[done] in waits_for:
                    waits_for.remove(begun[done])
                    if not waits_for:
                        yield rows[number]


ARRIVALS = ("pods", "without GPUs", "policy", "at 100 %", "at 130 %", "±", "8-GPU refused", "BestFit", "FGD")
WAITS = ("pods", "load", "policy", "allocated %", "wait h", "at once %", "8-GPU: wait h", "at once %", "waiting")


def _arrivals(run: Run, figures: Mapping[str, Sequence[float]]) -> Sequence[str]:
    ends = figures["at_130"]
    spread = f"{stdev(ends):.2f}" if len(ends) > 1 else ""
    published = [f"{each:.2f}" for each in PUBLISHED.get(run.pods, ())] or ["", ""]
    ours = [f"{mean(figures['at_100']):.2f}", f"{mean(ends):.2f}", spread, f"{mean(figures['refused']):.1f}"]
    return run.pods, run.cpu_pods, run.policy, *ours, *published


def _waits(run: Run, figures: Mapping[str, Sequence[float]]) -> Sequence[str]:
    names = ("allocated", "wait", "at_once", "large_wait", "large_at_once", "waiting")
    return run.pods, f"{run.load:g}", run.policy, *(f"{mean(figures[name]):.2f}" for name in names)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
