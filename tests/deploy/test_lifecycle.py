"""From the release before to today's and back, a leader that dies, and the end: with pods that hold GPUs all along."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemonset import render
from tests.deploy import images, tenants
from tests.deploy.cluster import Cluster, CommandFailed
from tests.deploy.installed import (
    CHART,
    IMAGE,
    SYSTEM,
    helm_installs,
    helm_uninstalls,
    holder,
    pods_of,
    rolled_out,
)

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
RESTARTS = "jsonpath={.items[*].status.containerStatuses[*].restartCount}"
PODS = int(os.environ.get("ROLLOUT_PODS", "40"))
BEFORE = "before"
"""The tag of the image of the release before."""


@pytest.fixture(autouse=True)
def leaves_nothing(gpus: Cluster) -> Iterator[None]:
    """A test that failed is no reason for the next one to fail."""
    yield
    if gpus.helm("list --short --namespace topogpu-system").strip():
        gpus.kubectl("delete deployments,pods --all --now")
        helm_uninstalls(gpus)


def test_a_release_is_upgraded_and_rolled_back_under_pods_that_hold_gpus(gpus: Cluster, tmp_path: Path) -> None:
    try:
        archive, chart = images.previous(), images.chart_before(tmp_path)
    except images.NoImage as reason:
        pytest.skip(str(reason))
    gpus.import_image(archive, f"registry.example.com/topogpu:{BEFORE}")
    helm_installs(gpus, f"--set image.tag={BEFORE}", chart=str(chart))
    gpus.apply(tenants.deployment("serve", gpus=2, replicas=2))
    gpus.kubectl("rollout status deployment/serve --timeout 120s")
    held = tenants.given(gpus, "serve")
    gpus.apply(tenants.pod("waits", gpus=6))
    with tenants.stream(gpus, "upgraded") as stream:
        gpus.helm(f"upgrade topogpu {CHART} --namespace topogpu-system --reset-then-reuse-values {IMAGE}")
        rolled_out(gpus)
        gpus.helm("rollback topogpu 1 --namespace topogpu-system")
        rolled_out(gpus)
        gpus.helm(f"upgrade topogpu {CHART} --namespace topogpu-system --reset-then-reuse-values {IMAGE}")
        rolled_out(gpus)
    assert stream.failed == []
    assert stream.ended > 0
    assert tenants.given(gpus, "serve") == held
    assert set(gpus.kubectl(f"get pods -l app=serve -o '{RESTARTS}'").split()) == {"0"}
    assert gpus.get("pod waits")["status"]["phase"] == "Pending"
    gpus.kubectl("delete deployment/serve")
    gpus.kubectl("wait --for condition=Ready pod/waits --timeout 120s")
    gpus.kubectl("delete pod waits")
    helm_uninstalls(gpus)


def test_no_pod_of_a_steady_stream_fails_while_the_daemon_is_rolled_out_again_and_again(gpus: Cluster) -> None:
    helm_installs(gpus)
    rollouts = 0
    with tenants.stream(gpus, "steady", between_seconds=0.5) as stream:
        while stream.created < PODS:
            gpus.kubectl(f"{SYSTEM} rollout restart daemonset/topogpu-device-plugin")
            gpus.kubectl(f"{SYSTEM} rollout status daemonset/topogpu-device-plugin --timeout 180s")
            rollouts += 1
    print(f"{rollouts} roll-outs, {stream.ended} pods, {len(stream.failed)} failed")
    assert stream.failed == []
    assert stream.ended >= PODS
    assert rollouts > 1
    helm_uninstalls(gpus)


def test_a_kubelet_that_restarts_in_the_middle_of_a_roll_out_refuses_pods_until_the_daemon_is_back_and_no_longer(
    gpus: Cluster,
) -> None:
    helm_installs(gpus)
    # Kubelet gives up the starts that it is stopped in, of pods with GPUs and without.
    with tenants.stream(gpus, "restarted", restart="OnFailure") as stream:
        for how in (signal.SIGTERM, signal.SIGKILL):
            gpus.kubectl(f"{SYSTEM} rollout restart daemonset/topogpu-device-plugin")
            gpus.until(lambda: len(pods_of(gpus, "device-plugin")) == 2, "the next daemon beside the one before")
            gpus.node.stop_kubelet(how)
            gpus.node.start_kubelet()
            rolled_out(gpus)
    # Kubelet calls all GPUs unhealthy until a device plugin has registered again. Nothing else may fail a pod.
    assert [each for each in stream.failed if "UnexpectedAdmissionError" not in each] == []
    assert stream.ended > len(stream.failed)
    gpus.apply(tenants.pod("after", gpus=1))
    gpus.kubectl("wait --for condition=Ready pod/after --timeout 120s")
    gpus.kubectl("delete pod after")
    helm_uninstalls(gpus)


def test_the_other_replica_takes_over_from_a_leader_that_is_killed(gpus: Cluster) -> None:
    helm_installs(gpus, "--set scheduler.replicas=2")
    # An installation that was removed leaves its lease until that ends.
    gpus.until(lambda: leading(gpus) != "", "one of the replicas has the lease")
    leader = leading(gpus)
    gpus.kubectl(f"{SYSTEM} delete pod {leader} --force --grace-period=0")
    gpus.apply(tenants.pod("next", gpus=1))
    gpus.kubectl("wait --for condition=Ready pod/next --timeout 120s")
    assert not holder(gpus).startswith(leader)
    gpus.kubectl("delete pod next")
    helm_uninstalls(gpus)


def test_nothing_is_left_on_a_node_once_its_pods_and_the_program_are_gone(gpus: Cluster) -> None:
    helm_installs(gpus)
    gpus.apply(tenants.pod("holds", gpus=1))
    gpus.kubectl("wait --for condition=Ready pod/holds --timeout 120s")
    helm_uninstalls(gpus)
    gpus.kubectl(f"apply -k {render.HERE / 'uninstall'}")
    gpus.until(lambda: "holds" in refusal(gpus), "the cleaner names the pod that holds a GPU")
    gpus.kubectl("delete pod holds")
    gpus.kubectl(f"{SYSTEM} rollout status daemonset/topogpu-uninstall --timeout 400s")
    node = gpus.get("node node-a")
    assert [key for key in node["metadata"].get("annotations", {}) if "topogpu.io" in key or "hami.io" in key] == []
    assert list((gpus.node.cdi).glob("topogpu*")) == []
    assert "nvidia.com/gpumem" not in node["status"]["capacity"]
    gpus.kubectl(f"delete -k {render.HERE / 'uninstall'}")


def leading(cluster: Cluster) -> str:
    """The pod that has the lease; empty while it is none of these."""
    return next((name for name in pods_of(cluster, "scheduler") if holder(cluster).startswith(name)), "")


def refusal(cluster: Cluster) -> str:
    """What the cleaner says on the node; empty before it says anything."""
    try:
        return cluster.kubectl(f"{SYSTEM} logs daemonset/topogpu-uninstall -c uninstall-node")
    except CommandFailed:
        return ""
