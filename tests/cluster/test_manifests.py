"""The shipped manifests on a real API server, and the programs run with what they say."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from daemonset import render
from simulation.processes import ChildProcess
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, free_port
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import gpu_node, gpu_pod
from tests.cluster.shipped import NAMESPACE, SCHEDULER, identity, kubeconfig
from tests.daemonset.shipped import base, container, scheduler_configuration
from tests.polling import until

pytestmark = pytest.mark.cluster
OLDEST_OF_THE_BASE = 30
"""The first minor release with ValidatingAdmissionPolicies in v1."""
NEEDS_OTHERS_DEFINITIONS = {"cert-manager", "monitoring"}
"""Overlays with kinds that cert-manager and the Prometheus operator define."""


@pytest.fixture(scope="module")
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One of its own: the shipped webhook and policies stop what other tests do."""
    with ControlPlane(kubernetes, tmp_path_factory.mktemp("deployment")) as running:
        yield running


@pytest.fixture
async def peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as server:
        yield server


async def folders(peer: Peer) -> list[Path]:
    """What is applied on this release; the first is the plainest."""
    minor = await peer.minor()
    if minor < OLDEST_OF_THE_BASE:
        return [render.HERE / "overlays" / f"kubernetes-1.{minor}"]
    general = [name for name in render.variants() if name not in NEEDS_OTHERS_DEFINITIONS | set(render.OTHER_RELEASES)]
    return [render.HERE / "base", *(render.HERE / "overlays" / name for name in general)]


async def test_kubectl_applies_what_is_shipped_and_the_second_time_changes_nothing(
    plane: ControlPlane, peer: Peer
) -> None:
    async def apply(folder: Path, *options: str) -> list[str]:
        return (await asyncio.to_thread(plane.kubectl, "apply", *options, "-k", str(folder))).splitlines()

    plain, *others = await folders(peer)
    assert {line.rpartition(" ")[2] for line in await apply(plain)} == {"created"}
    assert [line for line in await apply(plain) if not line.endswith(" unchanged")] == []
    for folder in others:
        assert await apply(folder, "--dry-run=server", "--validate=strict")
    await asyncio.to_thread(plane.kubectl, "delete", "mutatingwebhookconfigurations", "topogpu-webhook")


@pytest.fixture
async def deployed(plane: ControlPlane, peer: Peer) -> None:
    """Everything but the webhook's registration, which leads to a Service, and there is no network here."""
    texts = await asyncio.to_thread(plane.kubectl, "kustomize", str((await folders(peer))[0]))
    kept = [each.text for each in render.split(texts) if each.content["kind"] != "MutatingWebhookConfiguration"]
    path = Path(plane.kubeconfig()).parent / "deployed.yaml"
    path.write_text("---\n".join(kept))
    await asyncio.to_thread(plane.kubectl, "apply", "-f", str(path))


@pytest.mark.usefixtures("deployed")
async def test_the_shipped_configuration_arguments_and_rights_are_enough_to_place_a_pod(
    kubernetes: Binaries, plane: ControlPlane, peer: Peer, tmp_path: Path
) -> None:
    """Both containers as they are written down, as their service account; only addresses and credentials are others."""
    credentials = kubeconfig(plane, await identity(peer, SCHEDULER, "control"), tmp_path / "scheduler.kubeconfig")
    verbs, metrics, secure = (f"127.0.0.1:{free_port()}" for _ in range(3))
    await peer.create("/api/v1/nodes", gpu_node("a"))
    await peer.create("/api/v1/namespaces/default/pods", gpu_pod("train", 4))

    async def bound() -> bool:
        _, pod = await peer.send("GET", "/api/v1/namespaces/default/pods/train")
        return bool(pod["spec"].get("nodeName"))

    arguments = scheduler_arguments(verbs, secure, credentials, tmp_path)
    async with (
        running("extender", extender_command(verbs, metrics, credentials, tmp_path), tmp_path) as extender,
        running("kube-scheduler", [kubernetes.path("kube-scheduler"), *arguments], tmp_path),
    ):
        await extender.wait_for_line(r"listening on (http://\S+)", 120)
        await until(bound)
        probes = [f"http://{metrics}/healthz", f"http://{metrics}/readyz", f"https://{secure}/healthz"]
        # Before 1.31 kube-scheduler does not say whether it is ready.
        probes += [f"https://{secure}/readyz"] if await peer.minor() >= 31 else []
        assert {await status(probe) for probe in probes} == {200}
        kept = f"/api/v1/namespaces/{NAMESPACE}/secrets/topogpu-webhook"
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/topogpu-scheduler"
        assert {"tls.crt", "tls.key"} <= set((await peer.send("GET", kept))[1]["data"])
        assert (await peer.send("GET", lease))[0] == 200
    assert re.findall(r".* is forbidden: .*", (tmp_path / "kube-scheduler.log").read_text()) == []


def extender_command(verbs: str, metrics: str, credentials: str, folder: Path) -> list[str]:
    spec = container(base(), "topogpu-scheduler/extender").spec
    elsewhere = [f"--http_bind={verbs}", f"--metrics-bind-address={metrics}", "--webhook-bind-address=127.0.0.1:0"]
    elsewhere += [f"--kubeconfig={credentials}"]
    bindings = f"RUNTIME_DIRECTORY={folder / 'bindings'}"
    return ["env", bindings, sys.executable, *spec["command"][1:], *spec["args"], *elsewhere]


def scheduler_arguments(verbs: str, secure: str, credentials: str, folder: Path) -> list[str]:
    configuration = scheduler_configuration(base())
    configuration["extenders"][0]["urlPrefix"] = f"http://{verbs}"
    configuration["clientConnection"]["kubeconfig"] = credentials
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(configuration))
    address, _, port = secure.partition(":")
    elsewhere = [f"--config={file}", f"--secure-port={port}", f"--bind-address={address}"]
    elsewhere += [f"--{purpose}-kubeconfig={credentials}" for purpose in ("authentication", "authorization")]
    return [*container(base(), "topogpu-scheduler/kube-scheduler").spec["args"], *elsewhere]


@asynccontextmanager
async def running(name: str, command: list[str], folder: Path) -> AsyncIterator[ChildProcess]:
    process = await ChildProcess.start(name, command, {}, folder / f"{name}.log")
    try:
        yield process
    finally:
        await process.stop()


async def status(url: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(url, ssl=False) as answer:
        return answer.status
