"""Requests of pods in benchmarks of `/filter`, and those that kube-scheduler would send about them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from benchmarks.cluster import GPU_MIB, gpu_uuid, node_name
from proto.annotations import keys

Container = tuple[int, int]
"""GPUs and MiB of each; more than 81 920 MiB fits nowhere."""
TOPOLOGY = {keys.GPU_POLICY: "topology-aware"}
ONE_CONTAINER = {1000: 10.0, 5000: 25.0}
SEVERAL = {1000: 60.0, 5000: 150.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Pods of one kind. `containers` are those of the pod with a given number; `gpu` annotates it with some node's GPU.

    `budget_ms` is the largest allowed p99, by number of nodes.
    """

    name: str
    containers: Callable[[int], Sequence[Container]]
    annotations: Mapping[str, str] = field(default_factory=dict)
    gpu: str = ""
    budget_ms: Mapping[int, float] = field(default_factory=dict)


FITS = Ask(name="fits", containers=lambda _: [(1, 1024)])
ASKS = (
    FITS,
    Ask(name="fits nowhere", containers=lambda _: [(1, 100_000)]),
    Ask(name="4 GPUs, topology-aware", containers=lambda _: [(4, 1024)], annotations=TOPOLOGY),
)
"""All pods have the same shape."""
SHAPES = (
    Ask(name="1 GPU", containers=lambda n: [(1, 1100 + n)], budget_ms=ONE_CONTAINER),
    Ask(
        name="4 GPUs, topology-aware",
        containers=lambda n: [(4, 1100 + n)],
        annotations=TOPOLOGY,
        budget_ms=ONE_CONTAINER,
    ),
    Ask(
        name="2 containers, topology-aware",
        containers=lambda n: [(4, 1100 + n), (2, 500)],
        annotations=TOPOLOGY,
        budget_ms=SEVERAL,
    ),
    Ask(name="refuses a GPU", containers=lambda _: [(1, 1025)], gpu=keys.NO_USE_GPU_UUID, budget_ms=ONE_CONTAINER),
    Ask(name="names a GPU", containers=lambda _: [(1, 1025)], gpu=keys.USE_GPU_UUID, budget_ms=SEVERAL),
    Ask(name="fits nowhere", containers=lambda n: [(1, 100_000 + n)], budget_ms=ONE_CONTAINER),
    Ask(
        name="2 containers, fits nowhere",
        containers=lambda n: [(4, 1100 + n), (8, 90_000)],
        annotations=TOPOLOGY,
        budget_ms=SEVERAL,
    ),
)
"""Each pod has its own shape."""
COSTLY = Ask(
    name="costly",
    containers=lambda n: [*((1, 1000 + n + each) for each in range(15)), (8, GPU_MIB - 9000 - n)],
    annotations=TOPOLOGY,
)
"""The most work that the webhook admits: GPUs are chosen on every node, and most nodes have too little left for the
last.
"""


def bodies(ask: Ask, nodes: int, requests: int, mark: str = "", namespace: str = "team") -> Iterator[bytes]:
    """Requests, each for another pod and with all nodes in another order. `mark` distinguishes the pods of several
    series.
    """
    rng = Random(0)
    names = [node_name(number) for number in range(nodes)]
    for number in range(requests):
        rng.shuffle(names)
        pod = _pod(ask, f"pod-{ask.name}-{mark}-{number}".replace(" ", "-"), namespace, number, nodes)
        yield msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})


def _pod(ask: Ask, name: str, namespace: str, number: int, nodes: int) -> dict[str, object]:
    asking = [
        {
            "name": f"c{n}",
            "image": "work",
            "resources": {"limits": {keys.RESOURCE_COUNT: str(gpus), keys.RESOURCE_MEMORY: str(mib)}},
        }
        for n, (gpus, mib) in enumerate(ask.containers(number))
    ]
    annotations = {**ask.annotations, **({ask.gpu: gpu_uuid(number * 7 % nodes, 1)} if ask.gpu else {})}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": asking}, "status": {"phase": "Pending"}}
