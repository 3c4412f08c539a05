"""The Node's labels about its GPUs, with the names and values of NVIDIA's GPU feature discovery.

Names, values and the rules for MIG are those of NVIDIA/k8s-device-plugin, internal/lm, at 0.20. Left out are
the labels of vGPU guests (`nvidia.com/vgpu.*`), which need PCI configuration space, and `nvidia.com/gfd.timestamp`,
which shows that the labels are that program's own.
"""

import re
from collections import Counter
from collections.abc import Sequence

from deviceplugin.machine.discovery import NodeSharing, mig_resource, shown_gpus, shown_mig_devices
from deviceplugin.machine.readings import GpuReading, MachineReading, MigReading
from proto.annotations.keys import NODE_CLIQUE, RESOURCE_COUNT

_LONGEST_VALUE = 63
_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
_MODES = {0x030000: "graphics", 0x030200: "compute"}
_FAMILIES = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
"""Names of GPU families, by major compute capability where the minor one does not matter."""
_TURING, _ADA = (7, 5), (8, 9)

Labels = dict[str, str]


def feature_labels(machine: MachineReading, sharing: NodeSharing) -> Labels:
    """Returns the labels in the order of their names; none for a machine without GPUs. GPUs that are left alone do not
    count.
    """
    gpus = shown_gpus(machine, sharing)
    if not gpus:
        return {}
    labels = {
        "nvidia.com/gpu.machine": label_value(machine.product) or "unknown",
        "nvidia.com/gpu.mode": _mode(gpus),
        "nvidia.com/mig.capable": _truth(any(gpu.mig_capable for gpu in gpus)),
        "nvidia.com/mps.capable": _truth(sharing.mode == "mps" and not any(gpu.mig_enabled for gpu in gpus)),
        **_clique(gpus),
        **_driver(machine.driver),
        **_cuda(machine.cuda),
        **_whole_gpus(gpus, sharing),
        **_mig(gpus, sharing),
    }
    return dict(sorted(labels.items()))


def label_value(text: str) -> str:
    """Returns a label's value: letters, digits and `-_.`, words joined by hyphens, a letter or digit at both ends."""
    words = re.sub("[^A-Za-z0-9-_. ]", "", text).split()
    return re.sub("^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", "-".join(words)[:_LONGEST_VALUE])


def _driver(version: str) -> Labels:
    """Returns the labels in both spellings. 570.86.15 has a revision, 418.30 has none."""
    parts = version.split(".")
    if len(parts) not in (2, 3) or not all(parts):
        return {}
    major, minor, revision = (*parts, "")[:3]
    return {
        "nvidia.com/cuda.driver-version.full": version,
        "nvidia.com/cuda.driver-version.major": major,
        "nvidia.com/cuda.driver-version.minor": minor,
        "nvidia.com/cuda.driver-version.revision": revision,
        "nvidia.com/cuda.driver.major": major,
        "nvidia.com/cuda.driver.minor": minor,
        "nvidia.com/cuda.driver.rev": revision,
    }


def _cuda(version: tuple[int, int] | None) -> Labels:
    if version is None:
        return {}
    major, minor = map(str, version)
    return {
        "nvidia.com/cuda.runtime-version.full": f"{major}.{minor}",
        "nvidia.com/cuda.runtime-version.major": major,
        "nvidia.com/cuda.runtime-version.minor": minor,
        "nvidia.com/cuda.runtime.major": major,
        "nvidia.com/cuda.runtime.minor": minor,
    }


def _mode(gpus: Sequence[GpuReading]) -> str:
    classes = {gpu.pci_class for gpu in gpus}
    return _MODES.get(classes.pop() or 0, "unknown") if len(classes) == 1 else "unknown"


def _clique(gpus: Sequence[GpuReading]) -> Labels:
    """Labels the fabric with which GPUs of several machines are registered. One within a machine has no cluster. A
    machine with a GPU that is not registered is no part of the clique: a group across machines would fail on it.
    """
    fabrics = [gpu.fabric for gpu in gpus if gpu.fabric is not None and gpu.fabric.state != 0]
    joined = {(each.cluster, each.clique) for each in fabrics}
    if len(joined) != 1 or any(each.is_broken or each.cluster == _NO_CLUSTER for each in fabrics):
        return {}
    cluster, clique = joined.pop()
    return {NODE_CLIQUE: f"{cluster}.{clique}"}


def _whole_gpus(gpus: Sequence[GpuReading], sharing: NodeSharing) -> Labels:
    """Labels the most frequent model; among equals the one with the lowest index. GPUs with MIG on are not shared."""
    models = Counter(gpu.name for gpu in gpus)
    model = max(models, key=lambda name: models[name])
    alike = [gpu for gpu in gpus if gpu.name == model]
    gpu = next((gpu for gpu in alike if not gpu.mig_enabled), alike[0])
    replicas = 0 if gpu.mig_enabled else sharing.split_count
    labels = _resource(RESOURCE_COUNT, len(alike), (model,), replicas, sharing) | _architecture(gpu)
    if gpu.memory_mib:
        labels[f"{RESOURCE_COUNT}.memory"] = str(gpu.memory_mib)
    return labels


def _architecture(gpu: GpuReading) -> Labels:
    if not gpu.compute_capability or not gpu.compute_capability[0]:
        return {}
    major, minor = gpu.compute_capability
    return {
        f"{RESOURCE_COUNT}.family": _family(major, minor),
        f"{RESOURCE_COUNT}.compute.major": str(major),
        f"{RESOURCE_COUNT}.compute.minor": str(minor),
    }


def _family(major: int, minor: int) -> str:
    match major:
        case 7:
            return "volta" if (major, minor) < _TURING else "turing"
        case 8:
            return "ampere" if (major, minor) < _ADA else "ada-lovelace"
    return _FAMILIES.get(major, "undefined")


def _resource(resource: str, count: int, product: Sequence[str], replicas: int, sharing: NodeSharing) -> Labels:
    shared = replicas > 1
    strategy = ("mps" if sharing.mode == "mps" else "time-slicing") if shared else "none"
    parts = [*map(label_value, product), *(["SHARED"] if shared else [])]
    return {
        f"{resource}.product": label_value("-".join(filter(None, parts))),
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(replicas),
        f"{resource}.sharing-strategy": strategy,
    }


def _mig(gpus: Sequence[GpuReading], sharing: NodeSharing) -> Labels:
    """MIG devices are never shared further."""
    if sharing.mig_strategy == "none":
        return {}
    labels: Labels = {"nvidia.com/mig.strategy": sharing.mig_strategy}
    divided = [gpu for gpu in gpus if gpu.mig_enabled]
    devices = [(gpu, mig) for gpu in divided for mig in shown_mig_devices(gpu, sharing)]
    if sharing.mig_strategy == "single":
        if not divided:
            return labels
        alike = len({mig.profile for _, mig in devices}) == 1
        if not alike or len(divided) != len(gpus) or not all(shown_mig_devices(gpu, sharing) for gpu in divided):
            return labels | _invalid(divided[0])
    kinds: dict[str, list[tuple[GpuReading, MigReading]]] = {}
    for gpu, mig in devices:
        kinds.setdefault(mig.profile, []).append((gpu, mig))
    for profile, found in kinds.items():
        resource = RESOURCE_COUNT if sharing.mig_strategy == "single" else mig_resource(profile)
        labels |= _mig_kind(resource, *found[0], len(found), sharing)
    return labels


def _mig_kind(resource: str, gpu: GpuReading, mig: MigReading, count: int, sharing: NodeSharing) -> Labels:
    labels = _resource(resource, count, (gpu.name, "MIG", mig.profile.replace("+", ".")), 1, sharing)
    if mig.memory_mib:
        labels[f"{resource}.memory"] = str(mig.memory_mib)
    if mig.size is None:
        return labels
    numbers = {
        "multiprocessors": mig.size.multiprocessors,
        "slices.gi": mig.size.gpu_slices,
        "slices.ci": mig.size.compute_slices,
        "engines.copy": mig.size.copy_engines,
        "engines.decoder": mig.size.decoders,
        "engines.encoder": mig.size.encoders,
        "engines.jpeg": mig.size.jpeg_engines,
        "engines.ofa": mig.size.ofa_engines,
    }
    return labels | {f"{resource}.{name}": str(number) for name, number in numbers.items()}


def _invalid(gpu: GpuReading) -> Labels:
    """Returns the labels of strategy single on a node whose devices are not alike."""
    return {
        f"{RESOURCE_COUNT}.product": label_value(f"{label_value(gpu.name)}-MIG-INVALID"),
        f"{RESOURCE_COUNT}.count": "0",
        f"{RESOURCE_COUNT}.replicas": "0",
        f"{RESOURCE_COUNT}.sharing-strategy": "",
        f"{RESOURCE_COUNT}.memory": "0",
    }


def _truth(answer: bool) -> str:
    return str(answer).lower()
