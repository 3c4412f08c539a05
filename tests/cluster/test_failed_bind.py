"""A pod that the real kube-scheduler gives up once its GPUs are reserved: PreBind waits for a volume in vain."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
BIND_SECONDS = 3
"""How long VolumeBinding waits for a volume; 600 by default."""
PROFILE = {
    "schedulerName": "topogpu-scheduler",
    "pluginConfig": [
        {
            "name": "VolumeBinding",
            "args": {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "VolumeBindingArgs",
                "bindTimeoutSeconds": BIND_SECONDS,
            },
        }
    ],
}


@pytest.fixture
async def peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    """With a class of volumes that nobody ever makes."""
    async with real(plane) as found:
        never = {
            "metadata": {"name": "never"},
            "provisioner": "example.com/never",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        await found.create(CLASSES, never)
        try:
            yield found
        finally:
            await found.send("DELETE", f"{CLASSES}/never")


def with_volume(pod: dict[str, Any]) -> dict[str, Any]:
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return pod | {"spec": pod["spec"] | {"volumes": [claim]}}


async def test_gpus_of_a_pod_whose_volume_never_comes_go_to_one_that_can_run(
    plane: ControlPlane, peer: Peer, tmp_path: Path
) -> None:
    async with running(plane, peer, tmp_path, gpu_node("a"), profiles=[PROFILE]) as cluster:
        claim = {
            "metadata": {"name": "data"},
            "spec": {
                "storageClassName": "never",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        await peer.create(f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims", claim)
        await cluster.add(with_volume(gpu_pod("waits", 8, gpucores=100)))

        async def promised() -> bool:
            return any(answer.get("NodeNames") == ["a"] for _, answer in cluster.recorder.of("filter"))

        await until(promised)
        began = time.monotonic()
        await cluster.add(gpu_pod("runs", 8, gpucores=100))
        await cluster.bound("runs")
        asked = [question["Pod"]["metadata"]["name"] for question, _ in cluster.recorder.of("filter")]
        print(f"bound {time.monotonic() - began:.1f} s later; asked about: {asked}")

        async def answered() -> bool:
            return bool(cluster.recorder.of("bind"))

        # The pod shows its node before the extender has answered.
        await until(answered)
        assert await cluster.node_of("waits") == ""
