"""Pods that are generated: kinds of work as they are common in GPU clusters, by their shares."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from proto.annotations.keys import GPU_POLICY
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from scheduler_ext.requests import ResourceNames
from simulation.plan.objects import Arrival, arrival_of
from simulation.plan.question import quantities

GAP_SECONDS = 30.0
"""Mean time between two pods, when they come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`hours` is the mean time for which a pod runs; 0 GPUs is a pod without GPUs."""

    gpus: int
    memory_percentage: int = 100
    cores: int = 0
    cpus: int
    memory_gib: int
    hours: float
    linked: bool = False


KINDS: Mapping[str, Work] = {
    "notebook": Work(gpus=1, memory_percentage=20, cores=10, cpus=2, memory_gib=8, hours=6),
    "inference": Work(gpus=1, memory_percentage=50, cores=50, cpus=4, memory_gib=16, hours=48),
    "training-1": Work(gpus=1, cpus=8, memory_gib=32, hours=4),
    "training-2": Work(gpus=2, cpus=16, memory_gib=64, hours=6, linked=True),
    "training-4": Work(gpus=4, cpus=32, memory_gib=128, hours=8, linked=True),
    "training-8": Work(gpus=8, cpus=64, memory_gib=256, hours=12, linked=True),
    "preparation": Work(gpus=0, cpus=8, memory_gib=32, hours=1),
}


class UnknownWork(ValueError):
    """The message names the part of the text and the kinds that there are."""


def read_mix(text: str, pods: int, seed: int, names: ResourceNames) -> list[Arrival]:
    """Read `notebook=50,training-4=10` and draw so many pods. Raises UnknownWork."""
    shares: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, _, share = part.partition("=")
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, n=3, cutoff=0.3) or list(KINDS)
            raise UnknownWork(f"there is no kind of work {kind!r}; the nearest are {', '.join(near)}")
        try:
            shares[kind] = float(share or "nan")
        except ValueError:
            shares[kind] = -1.0
        if not 0 < shares[kind] < 1e9:
            raise UnknownWork(f"{part!r}: expected KIND=SHARE, such as {kind}=20")
    if not shares:
        raise UnknownWork(f"{text!r} names no kind of work; write for example notebook=50,training-4=10")
    draw = random.Random(seed)
    arrivals, at = [], 0.0
    for number, kind in enumerate(draw.choices(list(shares), list(shares.values()), k=pods)):
        work = KINDS[kind]
        lasts = draw.expovariate(1 / (3600 * work.hours))
        arrivals.append(arrival_of(_pod(f"{kind}-{number + 1}", work, names), at=at, lasts=lasts))
        at += draw.expovariate(1 / GAP_SECONDS)
    return arrivals


def _pod(name: str, work: Work, names: ResourceNames) -> Pod:
    amounts = {
        names.count: work.gpus,
        names.memory_percentage: work.memory_percentage if work.gpus else 0,
        names.cores: work.cores,
        "cpu": work.cpus,
    }
    limits = quantities(amounts) | {"memory": f"{work.memory_gib}Gi"}
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace="default", annotations={GPU_POLICY: "topology-aware"} if work.linked else {}
        ),
        spec=PodSpec(containers=[Container(name="main", resources=Resources(limits=limits))]),
    )
