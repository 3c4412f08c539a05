"""Resources that add up: what all GPUs of a container have together.

Its own amounts are of each GPU, so programs that add up pods are wrong by them: kubelet, quotas, autoscalers and Kueue.
Sums are of each container, because all of these programs know how containers of a pod add up.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from proto.admission import Json
from proto.annotations.keys import RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, SUMS
from scheduler_ext.requests import ContainerNeed


def add_sums(spec: Json, needs: Sequence[ContainerNeed | None], gpu_mib: int) -> None:
    """Writes the sums of each container into its resources, in place, and takes away any others. `needs` has one entry
    per container, `gpu_mib` is the memory of the smallest GPU that the pod may get.
    """
    for container, need in zip(_containers(spec), needs, strict=True):
        sums = {} if need is None else _sums(need, gpu_mib)
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            before = resources.get(kind) or {}
            after = {name: amount for name, amount in before.items() if name not in SUMS}
            # The API server takes limits for requests that are missing.
            if kind == "limits" or len(after) < len(before):
                after |= sums
            if after != before:
                resources = {**resources, kind: after}
                container["resources"] = resources


def _containers(spec: Json) -> Iterable[Json]:
    return chain(spec.get("initContainers") or (), spec.get("containers") or ())


def _sums(need: ContainerNeed, gpu_mib: int) -> dict[str, str]:
    sums = {
        RESOURCE_MEMORY_SUM: need.count * need.reserved_mib(gpu_mib),
        RESOURCE_CORES_SUM: need.count * need.reserved_cores,
    }
    return {name: str(amount) for name, amount in sums.items() if amount}
