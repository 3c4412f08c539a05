"""Compares the GPUs that NVIDIA's device plugin prefers with those that the extender chooses, on simulated machines.

The plugin is NVIDIA's own program (`make test-nvidia` builds it) on the simulated driver. Kubelet calls its
GetPreferredAllocation after the scheduler has chosen the node. Two questions: which GPUs does it take of random sets of
free ones; and when containers come and go, how many of them are on the best set that the machine has.

`python -m benchmarks.nvidia_choice` as root, takes about 4 minutes.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import mean

import click
import grpc
from rich.console import Console
from rich.table import Table

from deviceplugin.machine.topology import build_topology
from scheduler_ext.decide.topology import best_connected, least_connected
from simulation import machines
from tests.cluster.binaries import NoBinaries
from tests.nvidia.driver import Driver
from tests.nvidia.plugin import NvidiasPlugin
from tests.nvidia.programs import Programs, find

SLOW = ("dgx2-16x-v100-32g",)
"""Machines with so many GPUs that the plugin takes seconds to answer, and a few questions have to do."""
SLOW_TRIALS = 60
SIZES = (2, 4)
LEAVING = 0.35
"""The chance that one more container leaves before the next arrives."""
Choose = Callable[[int, list[int]], Awaitable[list[int] | None]]


@dataclass(frozen=True, slots=True)
class Links:
    """The pair scores of a machine, by positions of its GPUs."""

    scores: Sequence[Sequence[int]]

    def total(self, chosen: Sequence[int]) -> int:
        return sum(self.scores[a][b] for a, b in combinations(chosen, 2))

    def best(self, size: int) -> int:
        """Returns the highest total of all sets of the machine."""
        return max(map(self.total, combinations(range(len(self.scores)), size)))

    async def ours(self, size: int, free: list[int]) -> list[int]:
        """Returns the extender's choice under the policy topology-aware."""
        if size == 1:
            names = {gpu: str(gpu) for gpu in free}
            rows = {names[a]: {names[b]: self.scores[a][b] for b in free if b != a} for a in free}
            return [free[least_connected(rows, list(names.values()))]]  # type: ignore[arg-type]
        found = best_connected(tuple(tuple(self.scores[a][b] for b in free) for a in free), size)
        assert found is not None
        return [free[place] for place in found]


@dataclass(slots=True)
class Theirs:
    """NVIDIA's choice; a plugin that crashes or takes too long is started again."""

    plugin: NvidiasPlugin
    uuids: Sequence[str]
    dice: random.Random
    most_seconds: float
    longest: float = 0.0
    crashed: list[tuple[int, list[int]]] = field(default_factory=list)
    slow: list[tuple[int, list[int]]] = field(default_factory=list)

    async def choose(self, size: int, free: list[int]) -> list[int] | None:
        began = time.monotonic()
        ids = self.dice.sample([self.uuids[gpu] for gpu in free], len(free))
        try:
            found = await self.plugin.prefers(size, ids, seconds=self.most_seconds)
        except grpc.aio.AioRpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            (self.slow if late else self.crashed).append((size, free))
            await self.plugin.kill()
            await self.plugin.start()
            return None
        self.longest = max(self.longest, time.monotonic() - began)
        return sorted(map(self.uuids.index, found))


async def random_sets(links: Links, theirs: Theirs, trials: int, dice: random.Random) -> list[str]:
    """Returns a row: sets with a choice, how many of NVIDIA's are worse than the best, and by how much."""
    losses = []
    for _ in range(trials):
        free = sorted(dice.sample(range(len(links.scores)), dice.randint(2, len(links.scores))))
        size = dice.randint(2, min(len(free), 8))
        found = await theirs.choose(size, free)
        if found is None or size == len(free):
            continue
        ours = links.total(await links.ours(size, free))
        assert ours == max(map(links.total, combinations(free, size)))
        losses.append(1 - links.total(found) / ours if ours else 0.0)
    worse = [loss for loss in losses if loss > 0]
    shown = f"{mean(worse):.1%}, {max(worse):.1%}" if worse else "-"
    failed = [f"crashed {len(theirs.crashed)}"] if theirs.crashed else []
    failed += [f"{len(theirs.slow)} past {theirs.most_seconds:.0f} s"] if theirs.slow else []
    share = f"{len(worse)} of {len(losses)}"
    return [share, shown, f"{theirs.longest * 1000:.0f}", ", ".join(failed) or "-", _example(theirs)]


def _example(theirs: Theirs) -> str:
    """Returns the smallest question of each kind that failed."""
    failed = [min(kind, key=lambda asked: len(asked[1])) for kind in (theirs.crashed, theirs.slow) if kind]
    return "; ".join(f"{size} of {','.join(map(str, free))}" for size, free in failed)


async def churn(links: Links, choose: Choose, arrivals: int, seed: int) -> dict[int, list[int]]:
    """Returns the totals of containers that come and go, by size; the same ones arrive and leave for each chooser."""
    sizes, leaves = random.Random(seed), random.Random(seed + 1)
    running: list[list[int]] = []
    totals: dict[int, list[int]] = {size: [] for size in SIZES}
    for _ in range(arrivals):
        size = sizes.choice((1, 1, 1, 2, 2, 4) if len(links.scores) > 4 else (1, 1, 2))
        while len(links.scores) - sum(map(len, running)) < size or (running and leaves.random() < LEAVING):
            running.pop(leaves.randrange(len(running)))
        taken = {gpu for each in running for gpu in each}
        found = await choose(size, [gpu for gpu in range(len(links.scores)) if gpu not in taken])
        if found is None:
            continue
        running.append(found)
        if size > 1:
            totals[size].append(links.total(found))
    return totals


def on_the_best(links: Links, totals: dict[int, list[int]], size: int) -> str:
    """Returns how many are on the best set, and how much of its links all have on average."""
    found, best = totals[size], links.best(size)
    return f"{sum(total == best for total in found) / len(found):.0%} ({mean(found) / best:.1%})" if found else "-"


async def machine_rows(
    programs: Programs, name: str, trials: int, arrivals: int, most_seconds: float
) -> tuple[list[str], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(machines.load(name), Path(folder, "driver"))
        topology = build_topology(driver.reading())
        links = Links([[score or 0 for score in row] for row in topology.scores])
        uuids = [gpu.uuid for gpu in topology.gpus]
        slow = name in SLOW
        async with NvidiasPlugin(programs, driver) as plugin:
            dice = random.Random(7)
            theirs = Theirs(plugin, uuids, dice, most_seconds)
            sets = await random_sets(links, theirs, SLOW_TRIALS if slow else trials, dice)
            if slow:
                return sets, []
            nvidias = await churn(links, theirs.choose, arrivals, 7)
        ours = await churn(links, links.ours, arrivals, 7)
    return sets, [f"{on_the_best(links, nvidias, size)} → {on_the_best(links, ours, size)}" for size in SIZES]


@click.command()
@click.option("--machine", "names", multiple=True, default=[name for name in machines.names() if name != "cpu-only"])
@click.option("--trials", default=2520, show_default=True, help="random sets of each machine")
@click.option("--arrivals", default=1500, show_default=True, help="containers that come to each machine")
@click.option("--most-seconds", default=10.0, show_default=True, help="that an answer of NVIDIA's plugin may take")
def main(names: Sequence[str], trials: int, arrivals: int, most_seconds: float) -> None:
    try:
        programs = find()
    except NoBinaries as problem:
        raise click.ClickException(f"{problem}.") from None
    columns = ("machine", "NVIDIA's set has less links", "loss: mean, most", "longest answer, ms", "failed", "such as")
    sets, coming = Table(*columns, title="Random sets of free GPUs"), Table("machine", *(f"{n} GPUs" for n in SIZES))
    coming.title = "Containers on the best set of the machine (and links on average, of the best set's): NVIDIA → ours"
    for name in names:
        if len(machines.load(name).gpus) < 2:
            continue
        random_row, churn_row = asyncio.run(machine_rows(programs, name, trials, arrivals, most_seconds))
        sets.add_row(name, *random_row)
        if churn_row:
            coming.add_row(name, *churn_row)
    console = Console(width=160)
    console.print(sets, coming)


if __name__ == "__main__":
    main()
