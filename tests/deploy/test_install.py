"""The shipped image and manifests, as a user installs them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from daemonset import render
from tests.deploy import tenants
from tests.deploy.cluster import Cluster, CommandFailed
from tests.deploy.installed import SYSTEM, daemon, helm_installs, helm_uninstalls, holder, pods_of, rolled_out
from tests.documented_commands import shown_commands
from tests.node import image

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
OLDEST_OF_THE_BASE = 30
ROOT = render.HERE.parent
EXAMPLES = ROOT / "examples"
BUILT = r'hami_build_info{(?=[^}]*revision="[0-9a-f]{40}")(?=[^}]*build_date="2[^"]+Z")'
"""The image's commit, and its time."""
ANSWERS = {"doctor": "GPU", "allocations": "ml/train-0", "explain": "node-a"}
"""What is in the answer to each verb that the documents show for `kubectl exec`."""
HELD = {"NoNewPrivs": ["1"], "Seccomp": ["2"], "CapEff": ["0" * 16], "CapBnd": ["0" * 16]}
"""What the kernel says of a process without capabilities that filters its system calls."""


@pytest.fixture(scope="module")
def installed(gpus: Cluster) -> Iterator[Cluster]:
    """Begun by the first test that asks for it: those before install in their own way."""
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
    [scheduler] = pods_of(installed, "scheduler")
    installed.until(lambda: holder(installed).startswith(scheduler), "the scheduler has the lease")
    policies = {policy["metadata"]["name"] for policy in installed.items(f"networkpolicies {SYSTEM}")}
    assert policies == {"topogpu-scheduler", "topogpu-device-plugin"}
    for name, port in ((daemon(installed), 9394), (scheduler, 9395)):
        metrics = installed.kubectl(f"get --raw /api/v1/namespaces/topogpu-system/pods/{name}:{port}/proxy/metrics")
        assert re.search(BUILT, metrics), f"{name} does not say what it was built from"


def test_helm_test_starts_a_pod_with_one_gpu(installed: Cluster) -> None:
    assert "Phase:          Succeeded" in installed.helm("test topogpu --namespace topogpu-system --timeout 120s")


def test_every_kubectl_exec_of_the_documents_answers(installed: Cluster) -> None:
    installed.kubectl("create namespace ml")
    installed.kubectl("apply -n ml -f -", yaml.safe_dump(tenants.pod("train-0", gpus=1)))
    installed.kubectl("wait -n ml --for condition=Ready pod/train-0 --timeout 120s")
    commands = documented_commands()
    assert {verb for verb in ANSWERS for command in commands if f" {verb} " in command} == set(ANSWERS)
    for command in commands:
        said = installed.kubectl(command.removeprefix("kubectl ").replace(" POD ", f" {daemon(installed)} "))
        [wanted] = [answer for verb, answer in ANSWERS.items() if f" {verb} " in command]
        assert (wanted in said, "✗" in said) == (True, False), f"{command}: {said}"
    devices = installed.kubectl(f"{SYSTEM} exec {daemon(installed)} -- python -m deviceplugin devices")
    assert devices.count(" healthy\n") == 8
    installed.kubectl("delete namespace ml")


def documented_commands() -> list[str]:
    """Each once."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    shown = [one.command for page in pages for one in shown_commands(page.read_text(encoding="utf-8"))]
    return sorted({command for command in shown if command.startswith("kubectl -n topogpu-system exec ")})


@pytest.mark.parametrize(
    ("program", "user"),
    [("daemonset/topogpu-device-plugin -c device-plugin", 0), ("deployment/topogpu-scheduler -c extender", 65532)],
)
def test_the_kernel_holds_a_program_to_its_security_context(installed: Cluster, program: str, user: int) -> None:
    status = installed.kubectl(f"{SYSTEM} exec {program} -- cat /proc/1/status")
    found = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert {name: found[name] for name in HELD} == HELD
    assert found["Uid"] == [str(user)] * 4
    with pytest.raises(CommandFailed, match="Read-only file system"):
        installed.kubectl(f"{SYSTEM} exec {program} -- touch /written")


def test_the_webhook_answers_through_its_service_and_names_the_scheduler_in_the_pod(installed: Cluster) -> None:
    made = installed.kubectl("create --dry-run=server -o json -f -", yaml.safe_dump(tenants.pod("asked", gpus=1)))
    assert json.loads(made)["spec"]["schedulerName"] == "topogpu-scheduler"
