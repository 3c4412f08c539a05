"""The demo's machines and pods: every common shape, as users write it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from proto.annotations.keys import (
    GPU_POLICY,
    NODE_CLIQUE,
    NODE_POLICY,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_MEMORY_PERCENTAGE,
    USE_GPU_TYPE,
)

SCHEDULER_NAME = "topogpu-scheduler"
NAMESPACE = "default"
MACHINES = (
    "dgxa100-8x-a100-40g",
    "hgxh100-8x-h100-80g",
    "4x-a100-pcie-80g-bridged",
    "8x-rtx4090-dual-epyc",
)
"""The machines of the nodes, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The request of one container; None leaves the resource out, no GPU leaves all of them out."""

    name: str
    gpus: int = 0
    memory_mib: int | None = None
    memory_percentage: int | None = None
    cores: int | None = None

    def limits(self) -> dict[str, str]:
        amounts = {
            RESOURCE_COUNT: self.gpus or None,
            RESOURCE_MEMORY: self.memory_mib,
            RESOURCE_MEMORY_PERCENTAGE: self.memory_percentage,
            RESOURCE_CORES: self.cores,
        }
        return {resource: str(amount) for resource, amount in amounts.items() if amount is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of pod; `why` is the sentence the report shows, `fits` is True if it should run."""

    name: str
    why: str
    containers: tuple[Ask, ...]
    init: tuple[Ask, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    fits: bool = True
    group: str = ""
    """The group of which the pod is a member; empty for a pod alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """Pods that start together. All of them get nodes with one value of the label `domain`, if it names one."""

    size: int
    member: Shape
    domain: str = ""


def _policies(node: str = "", gpu: str = "") -> dict[str, str]:
    return {key: word for key, word in ((NODE_POLICY, node), (GPU_POLICY, gpu)) if word}


def _train(gpus: int) -> tuple[Ask, ...]:
    return (Ask(name="train", gpus=gpus, cores=100),)


_NOTEBOOK = (Ask(name="notebook", gpus=1, memory_mib=4000, cores=10),)
_SERVE = (Ask(name="serve", gpus=1, memory_mib=8000, cores=30),)

SHAPES = (
    Shape(
        name="train-4-topology",
        why="4 whole GPUs, best links",
        containers=_train(4),
        annotations=_policies("binpack", "topology-aware"),
    ),
    Shape(
        name="train-2-bridged",
        why="2 whole A100 80GB, best links",
        containers=_train(2),
        annotations=_policies("binpack", "topology-aware") | {USE_GPU_TYPE: "A100 80GB"},
    ),
    Shape(
        name="notebook-pack", why="fraction, packed", containers=_NOTEBOOK, annotations=_policies("binpack", "binpack")
    ),
    Shape(
        name="notebook-join", why="fraction, packed", containers=_NOTEBOOK, annotations=_policies("binpack", "binpack")
    ),
    Shape(name="serve-spread", why="fraction, spread", containers=_SERVE, annotations=_policies("spread", "spread")),
    Shape(
        name="serve-spread-more", why="fraction, spread", containers=_SERVE, annotations=_policies("spread", "spread")
    ),
    Shape(
        name="half-card", why="half of one GPU", containers=(Ask(name="half", gpus=1, memory_percentage=50, cores=50),)
    ),
    Shape(name="whole-card", why="one whole GPU", containers=_train(1)),
    Shape(
        name="two-containers",
        why="two containers, own limits each",
        containers=(
            Ask(name="model", gpus=1, memory_mib=10000, cores=40),
            Ask(name="monitor", gpus=1, memory_mib=1000, cores=5),
        ),
    ),
    Shape(
        name="with-plain-sidekick",
        why="GPU container beside one without",
        containers=(Ask(name="proxy"), Ask(name="model", gpus=1, memory_mib=6000, cores=20)),
    ),
    Shape(
        name="init-then-app",
        why="init container and app",
        init=(Ask(name="warm-up", gpus=1, memory_mib=2000, cores=10),),
        containers=(Ask(name="app", gpus=1, memory_mib=5000, cores=20),),
    ),
    Shape(
        name="two-halves",
        why="half a GPU for each container",
        containers=tuple(Ask(name=name, gpus=1, memory_percentage=50, cores=50) for name in ("left", "right")),
    ),
    Shape(
        name="too-big",
        why="more memory than any GPU has",
        containers=(Ask(name="huge", gpus=1, memory_mib=200000),),
        fits=False,
    ),
    Shape(
        name="on-rtx4090",
        why="only on an RTX 4090",
        containers=(Ask(name="render", gpus=1, memory_mib=12000),),
        annotations={USE_GPU_TYPE: "RTX 4090"},
    ),
    Shape(
        name="train-2-whole",
        why="2 whole GPUs, packed node",
        containers=_train(2),
        annotations=_policies("binpack", "topology-aware"),
    ),
    Shape(
        name="small-no-cores",
        why="memory only, no core limit",
        containers=(Ask(name="small", gpus=1, memory_mib=3000),),
    ),
    Shape(
        name="third-card",
        why="a third of one GPU",
        containers=(Ask(name="third", gpus=1, memory_percentage=33, cores=33),),
    ),
    Shape(
        name="spread-quad",
        why="a share for each of 4 containers, spread",
        containers=tuple(Ask(name=f"worker-{n}", gpus=1, memory_mib=2000, cores=10) for n in range(4)),
        annotations=_policies("spread", "spread"),
    ),
    Shape(
        name="init-larger",
        why="init container with more than the app",
        init=(Ask(name="load", gpus=1, memory_mib=6000, cores=20),),
        containers=(Ask(name="app", gpus=1, memory_mib=3000, cores=10),),
    ),
    Shape(name="tiny", why="1 GiB and 1 %", containers=(Ask(name="tiny", gpus=1, memory_mib=1024, cores=1),)),
)


TRAYS = ("gb200-nvl72-tray",) * 2
"""Further machines of the demo, in one NVLink clique."""
GROUPS = (
    GroupShape(
        size=2,
        member=Shape(
            name="across-nodes",
            why="4 whole GPUs on each of 2 nodes of a clique",
            containers=_train(4),
            annotations={USE_GPU_TYPE: "GB200"},
        ),
        domain=NODE_CLIQUE,
    ),
    GroupShape(
        size=3,
        member=Shape(
            name="gang",
            why="3 pods that start together",
            containers=_NOTEBOOK,
            annotations=_policies("binpack", "binpack"),
        ),
    ),
)
"""Groups of the demo. They come before its other pods."""


def members(groups: Iterable[GroupShape]) -> tuple[tuple[str, Shape], ...]:
    """Returns the pods of the groups by name."""
    return tuple(
        (f"{group.member.name}-{number + 1}", replace(group.member, group=group.member.name))
        for group in groups
        for number in range(group.size)
    )


def group_object(group: GroupShape) -> dict[str, object]:
    """Returns the PodGroup as posted to the API server."""
    spec: dict[str, object] = {"schedulingPolicy": {"gang": {"minCount": group.size}}}
    if group.domain:
        spec["schedulingConstraints"] = {"topology": [{"key": group.domain}]}
    metadata = {"name": group.member.name, "namespace": NAMESPACE}
    return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def workload(pods: int) -> tuple[tuple[str, Shape], ...]:
    """Returns that many pods by name, the shapes in turn; later rounds carry their number."""
    rounds = (divmod(position, len(SHAPES)) for position in range(pods))
    return tuple(
        (SHAPES[shape].name if turn == 0 else f"{SHAPES[shape].name}-{turn + 1}", SHAPES[shape])
        for turn, shape in rounds
    )


def pod_object(name: str, shape: Shape) -> dict[str, object]:
    """Returns the Pod as posted to the API server."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": dict(shape.annotations)},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "initContainers": [_container(ask) for ask in shape.init],
            "containers": [_container(ask) for ask in shape.containers],
            **({"schedulingGroup": {"podGroupName": shape.group}} if shape.group else {}),
        },
    }


def sample_pod() -> dict[str, object]:
    """Returns a pod as people write it, with a share of one GPU."""
    limits = Ask(name="main", gpus=1, memory_mib=8192, cores=30).limits()
    container = {"name": "main", "image": "registry.example/cuda-app:1", "resources": {"limits": limits}}
    metadata = {"name": "sample", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def _container(ask: Ask) -> dict[str, object]:
    limits = ask.limits()
    resources = {"limits": limits, "requests": limits} if limits else {}
    return {"name": ask.name, "image": "registry.example/cuda-app:1", "resources": resources}
