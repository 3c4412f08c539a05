"""Groups of pods for the real kube-scheduler, which schedules them as a whole where GenericWorkload is on."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.scheduling import Cluster, JsonObject, gpu_pod

GROUPS = "scheduling.k8s.io/v1beta1"
CLIQUE = "nvidia.com/gpu.clique"
RANK = "batch.kubernetes.io/job-completion-index"


@contextmanager
def plane_with_groups(kubernetes: Binaries, folder: Path, gates: str) -> Iterator[ControlPlane]:
    """A control plane with these feature gates. The tests are skipped before Kubernetes 1.37."""
    version = subprocess.run(
        [kubernetes.path("kube-scheduler"), "--version"], check=True, capture_output=True, text=True
    )
    if int(version.stdout.split(".")[1]) < 37:
        pytest.skip("kube-scheduler schedules no groups before 1.37")
    with ControlPlane(kubernetes, folder, gates=gates, apis=f"{GROUPS}=true") as running:
        yield running


async def add_pod_group(
    cluster: Cluster, name: str, members: int, domain: str = "", *, priority_class: str = ""
) -> None:
    """The object alone. The pods of the group get nodes with the same value of the label `domain`."""
    spec: JsonObject = {"schedulingPolicy": {"gang": {"minCount": members}}}
    if domain:
        spec["schedulingConstraints"] = {"topology": [{"key": domain}]}
    if priority_class:
        spec["priorityClassName"] = priority_class
    group = {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
    await cluster.peer.create(f"/apis/{GROUPS}/namespaces/{cluster.namespace}/podgroups", group)


async def add_group(
    cluster: Cluster,
    name: str,
    members: int,
    gpus: int,
    domain: str = "",
    *,
    annotations: Mapping[str, str] = MappingProxyType({}),
    priority_class: str = "",
) -> None:
    """A group that is bound as a whole or not at all. Its pods have these annotations, and ranks as those of a Job."""
    await add_pod_group(cluster, name, members, domain, priority_class=priority_class)
    for number in range(members):
        pod = gpu_pod(f"{name}{number}", gpus, gpucores=100, priority_class=priority_class)
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **annotations}
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), RANK: str(number)}
        await cluster.add(pod)
