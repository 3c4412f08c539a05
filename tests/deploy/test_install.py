"""The shipped image and manifests, as a user installs them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from daemonset import render
from tests.deploy import tenants
from tests.deploy.cluster import Cluster
from tests.deploy.installed import SYSTEM, daemon, helm_installs, helm_uninstalls, holder, pods_of, rolled_out
from tests.node import image

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
OLDEST_OF_THE_BASE = 30
EXAMPLES = render.HERE.parent / "examples"


@pytest.fixture
def installed(gpus: Cluster) -> Iterator[Cluster]:
    helm_installs(gpus)
    yield gpus
    helm_uninstalls(gpus)


def base(cluster: Cluster) -> str:
    minor = int(cluster.release.partition(".")[2])
    return str(render.HERE / ("base" if minor >= OLDEST_OF_THE_BASE else f"overlays/kubernetes-1.{minor}"))


def test_kubectl_applies_the_base_and_the_example_pod_gets_two_gpus(gpus: Cluster) -> None:
    gpus.kubectl(f"apply -k {base(gpus)}")
    rolled_out(gpus)
    gpus.import_image(stand_in_for_pytorch(gpus.folder), "nvcr.io/nvidia/pytorch:26.08-py3")
    gpus.kubectl(f"apply -f {EXAMPLES / 'topology-aware.yaml'}")
    gpus.kubectl("wait --for jsonpath={.status.phase}=Succeeded pod/topology-aware --timeout 120s")
    [visible] = [line for line in gpus.kubectl("logs topology-aware").splitlines() if "NVIDIA_VISIBLE_DEVICES=" in line]
    assert visible.count("GPU-") == 2
    gpus.kubectl("delete pod topology-aware")
    gpus.kubectl(f"delete -k {base(gpus)}")


def stand_in_for_pytorch(folder: Path) -> Path:
    """An image whose `torchrun` shows what it was given, and ends well."""
    archive = folder / "pytorch.tar"
    program = (folder / "workload").read_bytes()
    archive.write_bytes(image.pack({"usr/bin/torchrun": program}, "pytorch:test", {"Env": ["PATH=/usr/bin"]}))
    return archive


def test_the_pods_of_tenants_run_with_the_gpus_that_were_decided_for_them(installed: Cluster) -> None:
    installed.apply(tenants.deployment("serve", gpus=1, replicas=3), tenants.job("train", gpus=2, completions=2))
    installed.kubectl("rollout status deployment/serve --timeout 120s")
    installed.kubectl("wait --for condition=Complete job/train --timeout 120s")
    serving, trained = tenants.given(installed, "serve"), tenants.given(installed, "train")
    assert [len(one.uuids) for one in serving] == [1, 1, 1]
    assert len(frozenset[str]().union(*(one.uuids for one in serving))) == 3
    assert [one.uuids == one.decided and one.files == len(one.uuids) for one in (*serving, *trained)] == [True] * 5
    installed.kubectl("delete deployment/serve job/train")


def test_what_the_documents_ask_of_a_running_installation_is_answered(installed: Cluster) -> None:
    doctor = f"{SYSTEM} exec {daemon(installed)} -- python -m deviceplugin doctor --config /etc/topogpu/settings.yaml"
    assert "✗" not in installed.kubectl(doctor)
    said = installed.kubectl(f"{SYSTEM} exec {daemon(installed)} -- python -m deviceplugin devices")
    assert said.count("GPU-") == 8
    [scheduler] = pods_of(installed, "scheduler")
    installed.until(lambda: holder(installed).startswith(scheduler), "the scheduler has the lease")
    policies = {policy["metadata"]["name"] for policy in installed.items(f"networkpolicies {SYSTEM}")}
    assert policies == {"topogpu-scheduler", "topogpu-device-plugin"}


def test_the_webhook_answers_through_its_service_and_names_the_scheduler_in_the_pod(installed: Cluster) -> None:
    made = installed.kubectl("create --dry-run=server -o json -f -", yaml.safe_dump(tenants.pod("asked", gpus=1)))
    assert json.loads(made)["spec"]["schedulerName"] == "topogpu-scheduler"
