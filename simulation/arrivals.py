"""Pods that come and go by themselves, as in a cluster that people use."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from simulation.workload import SHAPES, Shape

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
