"""A pod's whole way on a real API server: service accounts, rights, policies and webhook as shipped."""

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.settings import TotalNames
from proto.annotations import keys
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from simulation import machines
from simulation.hami_core import install_placeholder
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import write_machine_file, write_sysfs
from simulation.processes import ChildProcess
from tests.cluster.control_plane import ControlPlane, free_port
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import gpu_pod
from tests.cluster.shipped import (
    DAEMON,
    NAMESPACE,
    POLICIES,
    RBAC,
    SCHEDULER,
    Caller,
    apply,
    documents,
    identity,
    kubeconfig,
    remove,
    rules,
    told,
)
from tests.deviceplugin.registration import TinyKubelet, kubelet_root
from tests.polling import until

pytestmark = [pytest.mark.cluster, pytest.mark.needs_compiler]

MACHINE = machines.load("4x-a100-pcie-80g-bridged")
FORGED = "GPU-another,NVIDIA,80000,100:;"
LEASE_VERBS = {verb for rule in rules(SCHEDULER) if "lease" in rule["role"] for verb in rule["verbs"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    peer: Peer
    plane: ControlPlane
    folder: Path
    node: str
    namespace: str
    tenant: Caller
    """With Kubernetes' own role `edit` in the namespace."""
    earlier_requests: int
    """Other tests are refused on purpose."""

    async def pod(self, name: str) -> dict[str, Any]:
        _, found = await self.peer.send("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        return found

    async def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = (await self.pod(name))["metadata"].get("annotations", {})
        return found

    def forbidden(self) -> list[str]:
        """What our own accounts were refused, by RBAC or by a policy."""
        return [
            f"{event['userAgent']} {event['verb']} {event['requestURI']}: {event['responseStatus'].get('message')}"
            for event in self.plane.audited()[self.earlier_requests :]
            if event["responseStatus"]["code"] in (403, 422)
        ]


@pytest.fixture
async def site(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Site]:
    async with real(plane) as peer:
        suffix = uuid.uuid4().hex[:8]
        tenant = Caller(peer, user="tenant", groups=("system:authenticated",))
        found = Site(
            peer=peer,
            plane=plane,
            folder=tmp_path,
            node=f"gpu-{suffix}",
            namespace=await peer.namespace(f"test-{suffix}"),
            tenant=tenant,
            earlier_requests=len(plane.audited()),
        )
        shipped = documents(*RBAC, *(POLICIES if await peer.minor() >= 30 else ()))
        # What the role `edit` is put together of, by a controller that is not here.
        own = [_bound(role, tenant.user, found.namespace) for role in ("view", "edit")]
        await apply(peer, [*shipped, *own])
        await peer.send("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/topogpu-webhook")
        yield found
        await remove(peer, [*shipped, *documents("MutatingWebhookConfiguration", "Secret")])
        for namespace in (found.namespace, NAMESPACE):
            await peer.send("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        await peer.send("DELETE", "/api/v1/nodes")


def _bound(role: str, user: str, namespace: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"system:aggregate-to-{role}"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


@asynccontextmanager
async def scheduler(site: Site) -> AsyncIterator[None]:
    """Extender and kube-scheduler as the Deployment starts them, with one service account."""
    who = await identity(site.peer, SCHEDULER, f"control-{site.node}")
    config = kubeconfig(site.plane, who, site.folder / "scheduler.kubeconfig")
    webhook = f"127.0.0.1:{free_port()}"
    await _install_webhook(site, webhook)
    [deployment] = documents("Deployment")
    [arguments] = [
        each["args"] for each in deployment["spec"]["template"]["spec"]["containers"] if each["name"] == "extender"
    ]
    own = ["--http_bind=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0", f"--webhook-bind-address={webhook}"]
    own += [f"--kubeconfig={config}"]
    command = [sys.executable, "-m", "scheduler_ext", *arguments, *own]
    environment = {**os.environ, "POD_NAME": f"{SCHEDULER}-control-{site.node}", "POD_NAMESPACE": NAMESPACE}
    process = await ChildProcess.start("extender", command, environment, site.folder / "extender.log")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.stop)
        verbs = (await process.wait_for_line(r"listening on (http://\S+)", 120))[1]
        configuration = _scheduler_configuration(verbs, config)
        name = f"scheduler-{site.namespace}"
        program = await asyncio.to_thread(stack.enter_context, site.plane.scheduler(configuration, name))
        async with site.peer.http.get(f"https://{webhook}/nothing", ssl=False) as response:
            assert response.status == 404
        yield
        program.check_running()
        process.check_running()
        assert "Traceback" not in process.log.read_text()


def _scheduler_configuration(verbs: str, config: str) -> dict[str, Any]:
    [found] = [each for each in documents("ConfigMap") if each["metadata"]["name"] == "topogpu-kube-scheduler"]
    configuration: dict[str, Any] = yaml.safe_load(found["data"]["config.yaml"])
    configuration["extenders"][0]["urlPrefix"] = verbs
    configuration["clientConnection"] |= {"kubeconfig": config}
    return configuration


@asynccontextmanager
async def daemon(site: Site) -> AsyncIterator[TinyKubelet]:
    """The node daemon with its service account, between a fake driver and a tiny kubelet; it allocates at once."""
    who = await identity(site.peer, DAEMON, site.node)
    config = kubeconfig(site.plane, who, site.folder / "daemon.kubeconfig")
    async with kubelet_root() as root:
        kubelet = TinyKubelet(root)
        await kubelet.start()
        write_machine_file(MACHINE, Path(root, "machine"), site.node)
        write_sysfs(MACHINE, Path(root, "sys"))
        install_placeholder(Path(root, "hook"))
        flags = ["--node-name", site.node, "--kubeconfig", config, "--kubelet-root", root, "--allocation", "immediate"]
        flags += ["--host-root", root, "--hook-path", f"{root}/hook", "--nvml-library", str(build_library())]
        command = [sys.executable, "-m", "deviceplugin", "run", *flags, "--metrics-bind-address", ""]
        environment = {**os.environ, "TOPOGPU_FAKE_NVML_MACHINE": f"{root}/machine"}
        process = await ChildProcess.start("daemon", command, environment, site.folder / "daemon.log")
        try:
            await kubelet.registered(1)
            yield kubelet
            process.check_running()
            assert "Traceback" not in process.log.read_text()
        finally:
            await process.stop()
            await kubelet.stop()


async def test_a_tenants_pod_is_admitted_placed_and_served_and_nobody_lacks_a_right(site: Site) -> None:
    async with daemon(site) as kubelet:
        await _registered(site)
        async with scheduler(site):
            await _a_tenants_pods(site, kubelet)
            await until(lambda: _used_its_lease(site))
        await _stopped_alone_are_pods_of_concern(site, f"/api/v1/namespaces/{site.namespace}/pods")
    assert site.forbidden() == []
    assert _lease_verbs(site) == LEASE_VERBS


async def _a_tenants_pods(site: Site, kubelet: TinyKubelet) -> None:
    await _webhook_answers(site)
    pods = f"/api/v1/namespaces/{site.namespace}/pods"
    asked = gpu_pod("p", 1, gpumem=8000, annotations={keys.DEVICES_ALLOCATED: FORGED, keys.POD_NODE: "another"})
    del asked["spec"]["schedulerName"]
    status, made = await site.tenant.send("POST", pods, asked)
    assert (status, made["spec"]["schedulerName"], made["metadata"].get("annotations")) == (
        201,
        "topogpu-scheduler",
        None,
    )
    await until(lambda: _is_bound(site, "p"))
    decided = (await site.annotations("p"))[keys.DEVICES_ALLOCATED]
    assert decided.split(",")[2] == "8000"
    await _raised_memory_is_refused(site, decided)
    async with kubelet.plugin() as plugin:
        ids = [f"{decided.split(',')[0]}-0"]
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer = await plugin.Allocate(request, timeout=60)
    env = answer.container_responses[0].envs
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (decided.split(",")[0], "8000m")
    await until(lambda: _is_served(site, "p"))
    lifted = gpu_pod("lifted", 1)
    lifted["spec"]["containers"][0]["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    status, words = told(await site.tenant.send("POST", pods, lifted))
    assert (status, "CUDA_DISABLE_CONTROL: can lift the limits of a shared GPU" in words) == (403, True)


async def _stopped_alone_are_pods_of_concern(site: Site, pods: str) -> None:
    """While the webhook is away."""
    plain = gpu_pod("plain", 1)
    del plain["spec"]["containers"][0]["resources"]
    forged = {**plain, "metadata": {"name": "forged", "annotations": {keys.DEVICES_ALLOCATED: FORGED}}}
    for pod in (gpu_pod("asking", 1), forged):
        status, words = told(await site.tenant.send("POST", pods, pod))
        assert (status, "failed calling webhook" in words) == (500, True), words
    assert (await site.tenant.send("POST", pods, plain))[0] == 201


def _by_kube_scheduler(site: Site) -> list[dict[str, Any]]:
    events = [event for event in site.plane.audited() if event["userAgent"].startswith("kube-scheduler/")]
    return [event for event in events if "objectRef" in event and event["objectRef"].get("namespace") == NAMESPACE]


def _lease_verbs(site: Site) -> set[str]:
    return {event["verb"] for event in _by_kube_scheduler(site) if event["objectRef"].get("resource") == "leases"}


async def _used_its_lease(site: Site) -> bool:
    """It renews it some seconds after it took it."""
    return await asyncio.to_thread(_lease_verbs, site) >= LEASE_VERBS


async def _raised_memory_is_refused(site: Site, decided: str) -> None:
    if await site.peer.minor() < 30:
        return
    path = f"/api/v1/namespaces/{site.namespace}/pods/p"
    for key in (keys.DEVICES_ALLOCATED, keys.DEVICES_TO_ALLOCATE):
        status, words = await site.tenant.annotate(path, {key: decided.replace("8000", "80000")})
        assert (status, f"annotation {key} is written by" in words) == (422, True), words


async def _install_webhook(site: Site, address: str) -> None:
    """Its Secret, empty, and its configuration, with an address for lack of Services."""
    [configuration] = documents("MutatingWebhookConfiguration")
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"https://{address}/webhook"}
    await apply(site.peer, [*documents("Secret"), configuration])


async def _webhook_answers(site: Site) -> None:
    """Once the extender has written its caBundle, and the API server has read it."""
    path = f"/api/v1/namespaces/{site.namespace}/pods?dryRun=All"

    async def admitted() -> bool:
        status, _ = await site.tenant.send("POST", path, gpu_pod("probe", 1))
        return status == 201

    await until(admitted)


async def _registered(site: Site) -> None:
    """Kubelet's part of the Node; the daemon's comes by itself."""
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", keys.RESOURCE_COUNT: "40"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    answered, words = await site.peer.send(
        "PATCH", f"/api/v1/nodes/{site.node}/status", {"status": status}, "application/merge-patch+json"
    )
    assert answered == 200, words

    async def reported() -> bool:
        _, node = await site.peer.send("GET", f"/api/v1/nodes/{site.node}")
        has_totals = node["status"]["capacity"].keys() >= set(TotalNames())
        return has_totals and keys.NODE_REGISTER in node["metadata"].get("annotations", {})

    await until(reported)


async def _is_bound(site: Site, name: str) -> bool:
    return bool((await site.pod(name))["spec"].get("nodeName") == site.node)


async def _is_served(site: Site, name: str) -> bool:
    _, node = await site.peer.send("GET", f"/api/v1/nodes/{site.node}")
    locked = keys.NODE_LOCK in node["metadata"]["annotations"]
    return (await site.annotations(name))[keys.BIND_PHASE] == "success" and not locked
