"""CPU time of `topogpu-sim plan` on a full cluster of 100 nodes: `python -m benchmarks.plan`.

The cluster is filled by `spread` with pods of all sizes, so that large ones wait. Each row is one question, asked three
times in a process of its own; the least CPU time counts, because it says what the question costs on a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from scheduler_ext.requests import ResourceNames
from simulation.plan.engine import Engine, Placed
from simulation.plan.machines import read_cluster
from simulation.plan.mixes import read_mix
from simulation.plan.question import Question

MIX = "notebook=40,inference=15,training-1=25,training-2=15,training-4=12,training-8=8"
QUESTIONS = ((), ("--advise",), ("--together",), ("--seeds", "1-5"))
ROUNDS = 3


def full_cluster(nodes: int, most_waiting: int) -> dict[str, object]:
    """Returns a list of objects as kubectl writes it."""
    described = read_cluster(f"{nodes}x:dgx-a100")
    question = Question(cluster=described)
    engine = Engine(described, question.under("spread/spread"), question.hosts)
    waiting = []
    for number, arrival in enumerate(read_mix(MIX, 12 * nodes, 1, ResourceNames())):
        if not isinstance(engine.place(arrival, f"uid-{number}", 0.0), Placed):
            waiting.append(arrival.pod(f"uid-{number}"))
    pods = [*engine.pods(), *waiting[:most_waiting]]
    items = [
        {"kind": kind, **msgspec.to_builtins(each)}
        for kind, several in (("Node", described.nodes), ("Pod", pods))
        for each in several
    ]
    return {"kind": "List", "items": items}


def spent(state: Path, question: tuple[str, ...]) -> tuple[float, float]:
    """Returns seconds of CPU, and of the clock."""
    command = [sys.executable, "-m", "simulation", "plan", "--state", str(state), *question]
    began, before = time.monotonic(), os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--waiting", type=int, default=60, help="pods that wait")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state.json"
        state.write_text(json.dumps(full_cluster(given.nodes, given.waiting)))
        print(f"{'question':<14} {'CPU s':>6} {'s':>6}")
        for question in QUESTIONS:
            cpu, clock = map(min, zip(*(spent(state, question) for _ in range(ROUNDS)), strict=True))
            print(f"{' '.join(question) or 'policies':<14} {cpu:>6.1f} {clock:>6.1f}")


if __name__ == "__main__":
    main()
