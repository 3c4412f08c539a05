"""Measures what a run of the planner costs: seconds of CPU for pods on described nodes, by policy.

Run it with `python -m benchmarks.planning`. A run is one process. On a quiet machine its CPU time is its time.
"""

import time

import click
from rich.console import Console
from rich.table import Table

from scheduler_ext.requests import ResourceNames
from simulation.plan.machines import read_cluster
from simulation.plan.mixes import read_mix
from simulation.plan.outcome import Run
from simulation.plan.question import Question
from simulation.plan.runs import run

KINDS = ("dgx-a100", "hgx-h100", "8x-rtx4090", "4x-a100")
MIX = "notebook=35,inference=20,training-1=20,training-2=10,training-4=8,training-8=5,preparation=2"


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default=1000, help="Of four kinds of machines.")
@click.option("--pods", default=10_000)
@click.option("--policies", default="binpack/spread,binpack/binpack,spread/spread,fgd/fgd")
def main(*, nodes: int, pods: int, policies: str) -> None:
    """Print a table of seconds for each policy."""
    began = time.process_time()
    cluster = read_cluster(",".join(f"{nodes // len(KINDS)}x:{kind}" for kind in KINDS))
    arrivals = tuple(read_mix(MIX, pods, 1, ResourceNames()))
    question = Question(cluster=cluster, arrivals=arrivals)
    console = Console(width=100)
    console.print(f"{len(cluster.nodes)} nodes and {pods} pods described in {time.process_time() - began:.1f} s of CPU")
    table = Table("policy", "CPU s", "ms for each pod", "pods placed", "allocated")
    for policy in policies.split(","):
        began = time.process_time()
        outcome = run(question, Run(policy=policy, seed=1))
        seconds = time.process_time() - began
        row = (f"{seconds:.1f}", f"{1000 * seconds / pods:.2f}", str(outcome.placed), f"{outcome.allocated:.1f} %")
        table.add_row(policy, *row)
    console.print(table)


if __name__ == "__main__":
    main()
