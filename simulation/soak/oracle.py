"""Judges a cluster by the JSON of its objects and by what containers got. Pure; it uses no code of the two programs.

Formats: the annotations `hami.io/vgpu-devices-allocated` and `hami.io/node-nvidia-register`, and HAMi-core's variables.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from simulation.recount import Amount, Held, allocated, holds, recount

REGISTER = "hami.io/node-nvidia-register"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MEMORY = "CUDA_DEVICE_MEMORY_LIMIT"
CORES = "CUDA_DEVICE_SM_LIMIT"
_WHOLE_CORES = (0, 100)

Json = Mapping[str, Any]
Capacity = Mapping[str, Amount]
"""Replicas, MiB and percent of cores, by GPU."""


def overbooked(pods: Iterable[Json], capacity: Capacity) -> Iterator[str]:
    """Yields a sentence for each GPU that bound pods hold beyond what it has."""
    for uuid, held in sorted(recount(filter(holds, pods)).items()):
        if uuid not in capacity:
            yield f"{uuid} is held by a pod, and no node has it"
        elif any(used > has for used, has in zip(held, capacity[uuid], strict=True)):
            yield f"{uuid} is held with {_words(held)} of {_words(capacity[uuid])}"


def wrongly_given(pod: Json, container: str, environment: Mapping[str, str], capacity: Capacity) -> Iterator[str]:
    """Yields a sentence for what a container got beside or instead of its pod's decision."""
    names = [one["name"] for key in ("initContainers", "containers") for one in pod["spec"].get(key, [])]
    decided = dict(zip(names, allocated(pod), strict=False)).get(container, {})
    visible = environment.get(VISIBLE, "")
    got = visible.split(",") if decided else []
    where = f"pod {pod['metadata']['name']}, container {container}"
    if not decided and "GPU-" in visible:
        yield f"{where}: decided no GPU, got {visible}"
    if sorted(got) != sorted(decided):
        yield f"{where}: decided {sorted(decided)}, got {sorted(got)}"
        return
    limited = any(key.startswith(MEMORY) for key in environment)
    for place, uuid in enumerate(got):
        _, mib, cores = decided[uuid]
        limits = (environment.get(f"{MEMORY}_{place}"), environment.get(f"{CORES}_{place}", environment.get(CORES)))
        if not limited and (mib < capacity[uuid][1] or cores not in _WHOLE_CORES):
            yield f"{where}: decided {mib} MiB and {cores} % of {uuid}, got no limit"
        elif limited and limits != (f"{mib}m", str(cores)):
            yield f"{where}: decided {mib} MiB and {cores} % of {uuid}, got {limits}"


def ledger_differences(snapshot: Json, pods: Iterable[Json]) -> Iterator[str]:
    """Yields a sentence for each GPU whose use the extender counts otherwise than the pods have."""
    counted: dict[str, Amount] = {}
    nodes = snapshot["nodes"]
    for node in nodes.values() if isinstance(nodes, dict) else nodes:
        for gpu in node["gpus"]:
            counted[gpu["device"]["uuid"]] = (gpu.get("replicas", 0), gpu.get("memory_mib", 0), gpu.get("cores", 0))
    true: Held = recount(filter(holds, pods))
    for uuid in sorted(counted.keys() | true.keys()):
        said, is_ = counted.get(uuid, (0, 0, 0)), true.get(uuid, (0, 0, 0))
        if said != is_:
            yield f"the extender counts {_words(said)} of {uuid}, its pods hold {_words(is_)}"


def register_differences(node: Json, gpus: Sequence[str], capacity: Capacity) -> Iterator[str]:
    """Yields a sentence for each GPU that the Node does not publish as the machine has it, healthy."""
    rows = json.loads(node["metadata"].get("annotations", {}).get(REGISTER, "[]"))
    published = {row["id"]: (row["count"], row["devmem"], row["devcore"]) for row in rows if row.get("health")}
    for uuid in sorted(published.keys() | set(gpus)):
        if published.get(uuid) != (capacity[uuid] if uuid in gpus else None):
            yield f"{node['metadata']['name']} publishes {published.get(uuid)} of {uuid}, not {capacity.get(uuid)}"


def _words(amount: Amount) -> str:
    return f"{amount[0]} replicas, {amount[1]} MiB, {amount[2]} % of cores"
