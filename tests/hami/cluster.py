"""A cluster in which HAMi's programs and ours run by what Helm and kubectl have put there.

The API server, etcd and kube-scheduler are real; kubelet is the stand-in. Nothing here makes pods of Deployments and
DaemonSets, so `Lab.follow` starts and stops the programs that they ask for. Our webhook is left out: no Service works.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from daemonset import helm, render
from proto.annotations import keys
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import PODS, Pod
from simulation import machines
from simulation.hami_core import install_placeholder
from simulation.kubelet.runtime import StandInSettings
from simulation.kubelet.standin import KubeletStandIn
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file, write_sysfs
from simulation.watching import ClusterView
from tests.cluster.control_plane import ControlPlane, Program, free_port
from tests.cluster.peers import Peer
from tests.hami import plugin
from tests.hami.programs import PLUGIN, SCHEDULER, Hami

JsonObject = dict[str, Any]
LONGEST_SECONDS = 150.0
HAMI_NAMESPACE = "kube-system"
_COMPONENT = "app.kubernetes.io/component"
_KINDS = {"DaemonSet": "daemonsets", "Deployment": "deployments"}
_LISTENING = re.compile(r"listening on (http://[\d.]+:\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    root: Path
    kubelet: KubeletStandIn
    files: plugin.Node


@dataclass(slots=True)
class Running:
    """The programs of one pod of a workload."""

    pod: str
    programs: list[Program] = field(default_factory=list)
    close: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet on one node, or a Deployment (then `node` is empty)."""

    kind: str
    namespace: str
    name: str
    node: str = ""


@dataclass
class Lab:
    plane: ControlPlane
    peer: Peer
    api: ApiServer
    view: ClusterView
    hami: Hami
    folder: Path
    url: str
    """The API server's, for clients without credentials."""
    nodes: dict[str, Node] = field(default_factory=dict)
    running: dict[Workload, Running] = field(default_factory=dict)
    _started: int = 0

    # ---- what an administrator does

    def helm(self, namespace: str, *words: str) -> None:
        self.shell([str(helm.find()), "--namespace", namespace, *words])

    def shell(self, command: list[str] | str) -> str:
        """As the administrator, in the repository. Programs of the control plane are on the path."""
        environment = {
            **os.environ,
            "KUBECONFIG": self.plane.kubeconfig(),
            "PATH": os.pathsep.join(
                (str(Path(self.plane.binary("kubectl")).parent), str(helm.find().parent), os.environ["PATH"])
            ),
        }
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=render.HERE.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def install_hami(self, *words: str) -> None:
        """Its chart, without the jobs that make its webhook's certificate."""
        self.helm(HAMI_NAMESPACE, "install", "hami", str(self.hami.chart), "--no-hooks", *words)

    def install_ours(self, *words: str) -> None:
        self.helm(
            render.NAMESPACE,
            *("install", "topogpu", str(render.CHART), "--create-namespace", "--set", "webhook.enabled=false", *words),
        )

    # ---- nodes

    async def add_node(self, name: str, machine: str = "dgxa100-8x-a100-40g", **labels: str) -> Node:
        root = self.folder / name
        own = root / "own"
        for folder in (own, root / "cdi", root / "root"):
            folder.mkdir(parents=True)
        described = machines.load(machine)
        write_machine_file(described, own / "machine", name)
        write_sysfs(described, root / "sys")
        install_placeholder(root / "hook")
        kubelet = KubeletStandIn(
            *(name, root, self.api),
            StandInSettings(
                api_url=self.url,
                labels={"kubernetes.io/os": "linux", **labels},
                cdi_directories=[root / "cdi"],
                runtime_version="containerd://2.4.2",
            ),
            now=lambda: datetime.now(UTC),  # noqa: TID251 - it is kubelet's clock
        )
        await kubelet.start()
        files = plugin.Node(
            root=root / "root",
            own=own,
            device_plugins=root / "device-plugins",
            cdi=root / "cdi",
            pci_devices=root / "sys" / "bus" / "pci" / "devices",
            library=build_library(),
        )
        self.nodes[name] = Node(name=name, root=root, kubelet=kubelet, files=files)
        return self.nodes[name]

    async def annotations(self, node: str) -> dict[str, str]:
        found: dict[str, str] = (await self._get(f"/api/v1/nodes/{node}"))["metadata"].get("annotations", {})
        return found

    async def registered(self, *nodes: str) -> None:
        async def all_are() -> bool:
            self.check()
            found = [await self.annotations(name) for name in nodes]
            return all(keys.NODE_REGISTER in each for each in found) and all(
                self.nodes[name].kubelet.devices.capacity().get(keys.RESOURCE_COUNT, (0, 0))[1] for name in nodes
            )

        await self.until(all_are)

    # ---- pods

    async def add(self, pod: JsonObject) -> None:
        await self.peer.create("/api/v1/namespaces/default/pods", pod)

    async def remove(self, *names: str) -> None:
        for name in names:
            await self.peer.send("DELETE", f"/api/v1/namespaces/default/pods/{name}")

        async def gone() -> bool:
            return not set(names) & set(await self.tenants())

        await self.until(gone)

    async def tenants(self) -> dict[str, Pod]:
        items = (await self._get("/api/v1/namespaces/default/pods"))["items"]
        return {
            item["metadata"]["name"]: await self.api.get(PODS, item["metadata"]["name"], "default") for item in items
        }

    async def started(self, *names: str) -> None:
        """Fails at once when one of them has failed."""

        async def all_run() -> bool:
            self.check()
            phases = await self.phases()
            failed = {name: phases[name] for name in names if phases.get(name, "").startswith("Failed")}
            assert not failed, failed
            return all(phases.get(name) == "Running" for name in names)

        await self.until(all_run)

    async def phases(self) -> dict[str, str]:
        """By name; a failed pod's with kubelet's words."""
        items = (await self._get("/api/v1/namespaces/default/pods"))["items"]
        statuses = {item["metadata"]["name"]: item["status"] for item in items}
        return {
            name: f"Failed: {status.get('message')}" if status.get("phase") == "Failed" else status.get("phase", "")
            for name, status in statuses.items()
        }

    async def locks(self) -> dict[str, str]:
        """Of the nodes that are locked."""
        found = {name: (await self.annotations(name)).get(keys.NODE_LOCK, "") for name in self.nodes}
        return {name: lock for name, lock in found.items() if lock}

    async def unlocked(self) -> None:
        async def none_is() -> bool:
            return not await self.locks()

        await self.until(none_is)

    # ---- programs

    async def follow(self) -> None:
        """Starts and stops programs until they are what Deployments and DaemonSets ask for."""
        wanted = [workload async for workload in self._wanted()]
        for workload in [each for each in self.running if each not in wanted]:
            await self._end(workload)
        self.check()
        for workload in wanted:
            if workload not in self.running:
                self.running[workload] = await self._begin(workload)

    async def kill(self, name: str) -> None:
        """By SIGKILL, all programs of the Deployment."""
        (workload,) = [each for each in self.running if each.name == name]
        for program in self.running[workload].programs:
            program.stop(signal.SIGKILL)
        await self._end(workload)

    def check(self) -> None:
        """That what was started still runs."""
        for running in self.running.values():
            for program in running.programs:
                program.check_running()

    async def until(self, fact: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + LONGEST_SECONDS
        while not await fact():
            assert time.monotonic() < deadline, f"not so within {LONGEST_SECONDS:g} s; {await self.phases()}"
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        for workload in list(self.running):
            await self._end(workload)
        for node in self.nodes.values():
            await node.kubelet.stop()

    async def _wanted(self) -> AsyncIterator[Workload]:
        nodes = (await self._get("/api/v1/nodes"))["items"]
        for kind, plural in _KINDS.items():
            for found in (await self._get(f"/apis/apps/v1/{plural}"))["items"]:
                names = found["metadata"]["namespace"], found["metadata"]["name"]
                if kind == "Deployment" and found["spec"]["replicas"]:
                    yield Workload(kind, *names)
                elif kind == "DaemonSet":
                    spec = found["spec"]["template"]["spec"]
                    for node in nodes:
                        if _fits(spec, node["metadata"].get("labels", {})):
                            yield Workload(kind, *names, node["metadata"]["name"])

    async def _begin(self, workload: Workload) -> Running:
        self._started += 1
        found = await self._get(
            f"/apis/apps/v1/namespaces/{workload.namespace}/{_KINDS[workload.kind]}/{workload.name}"
        )
        running = Running(f"{workload.name}-{self._started}")
        match found["metadata"]["labels"].get(_COMPONENT):
            case "hami-device-plugin":
                await self._make_pod(workload, found, running)
                await self._begin_hamis_plugin(workload, found, running)
            case "device-plugin":
                await self._make_pod(workload, found, running)
                await self._begin_our_daemon(workload, running)
            case "uninstall":
                await asyncio.to_thread(self._clean, workload)
                await self._make_pod(workload, found, running)
            case "hami-scheduler":
                await self._begin_hamis_scheduler(workload, found, running)
            case "scheduler":
                await self._begin_our_scheduler(workload, running)
            case other:
                raise AssertionError(f"{workload} is {other}, which is not known here")
        return running

    async def _end(self, workload: Workload) -> None:
        running = self.running.pop(workload)
        for program in reversed(running.programs):
            if program.is_running:
                await asyncio.to_thread(program.stop)
        await asyncio.to_thread(running.close.close)
        if workload.node:
            await self.peer.send(
                "DELETE", f"/api/v1/namespaces/{workload.namespace}/pods/{running.pod}?gracePeriodSeconds=0"
            )

    async def _make_pod(self, workload: Workload, found: JsonObject, running: Running) -> None:
        """As the DaemonSet's controller does; the stand-in calls it ready."""
        template = found["spec"]["template"]
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": workload.name, "uid": found["metadata"]["uid"]}
        metadata = {"name": running.pod, "labels": template["metadata"]["labels"]}
        spec = {
            "nodeName": workload.node,
            "serviceAccountName": template["spec"]["serviceAccountName"],
            "containers": [{"name": "main", "image": "example.com/daemon:1"}],
            "tolerations": [{"operator": "Exists"}],
        }
        await self.peer.create(
            f"/api/v1/namespaces/{workload.namespace}/pods",
            {"metadata": {**metadata, "ownerReferences": [{**owner, "controller": True}]}, "spec": spec},
        )

    async def _begin_hamis_plugin(self, workload: Workload, found: JsonObject, running: Running) -> None:
        node = self.nodes[workload.node].files
        (container,) = [
            one for one in found["spec"]["template"]["spec"]["containers"] if one["name"] == "device-plugin"
        ]
        config = await self._config_map(HAMI_NAMESPACE, "hami-device-plugin")
        (node.own / "config.json").write_text(config["config.json"])
        await self._write_device_config(node.own)
        (node.own / "ca.crt").write_bytes(Path(self.plane.certificate).read_bytes())
        await self._kubeconfig(
            *(workload, running.pod, node.own / "kubeconfig", found), authority=f"{plugin.INSIDE}/ca.crt"
        )
        environment = {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}
        environment["NODE_NAME"] = workload.node
        words = plugin.command(node, self.hami.path(PLUGIN), container["command"][1:], environment)
        self._start(running, workload, words, {})

    async def _begin_hamis_scheduler(self, workload: Workload, found: JsonObject, running: Running) -> None:
        (container,) = [
            one for one in found["spec"]["template"]["spec"]["containers"] if one["name"] == "vgpu-scheduler-extender"
        ]
        ours = (
            "--http_bind",
            "--cert_file",
            "--key_file",
            "--metrics-bind-address",
            "--device-config-file",
            "--leader-elect",
        )
        own = self.folder / running.pod
        own.mkdir()
        await self._write_device_config(own)
        address = f"127.0.0.1:{free_port()}"
        words = [str(self.hami.path(SCHEDULER)), *(one for one in container["command"][1:] if not one.startswith(ours))]
        words += [f"--http_bind={address}", f"--metrics-bind-address=127.0.0.1:{free_port()}"]
        words += [f"--device-config-file={own / 'device-config.yaml'}"]
        if self.hami.release >= (2, 7):
            words += ["--leader-elect=false"]
        kubeconfig = await self._kubeconfig(workload, "", own / "kubeconfig", found)
        environment = {one["name"]: one["value"] for one in container.get("env") or () if "value" in one}
        names = {"KUBECONFIG": kubeconfig, "POD_NAME": running.pod, "POD_NAMESPACE": workload.namespace}
        self._start(running, workload, words, environment | names)
        volumes = found["spec"]["template"]["spec"]["volumes"]
        (name,) = [one["configMap"]["name"] for one in volumes if one["name"] == "scheduler-config"]
        written = yaml.safe_load((await self._config_map(workload.namespace, name))["config.yaml"])
        for extender in written["extenders"]:
            extender |= {"urlPrefix": f"http://{address}", "enableHTTPS": False, "tlsConfig": None}
        self._begin_kube_scheduler(running, written)

    async def _begin_our_scheduler(self, workload: Workload, running: Running) -> None:
        written = yaml.safe_load((await self._config_map(workload.namespace, "topogpu-kube-scheduler"))["config.yaml"])
        (profile,) = written["profiles"]
        own = self.folder / running.pod
        own.mkdir()
        found = await self._get(f"/apis/apps/v1/namespaces/{workload.namespace}/deployments/{workload.name}")
        words = [sys.executable, "-m", "scheduler_ext", "serve", "--http_bind=127.0.0.1:0", "--metrics-bind-address="]
        words += [f"--scheduler-name={profile['schedulerName']}", "--kubeconfig"]
        words += [await self._kubeconfig(workload, "", own / "kubeconfig", found)]
        program = self._start(running, workload, words, dict(os.environ))

        async def listens() -> bool:
            program.check_running()
            return _LISTENING.search(self.log(running)) is not None

        await self.until(listens)
        address = _LISTENING.search(self.log(running))
        assert address is not None
        for extender in written["extenders"]:
            extender["urlPrefix"] = address[1]
        self._begin_kube_scheduler(running, written)

    def _begin_kube_scheduler(self, running: Running, written: JsonObject) -> None:
        written = {key: value for key, value in written.items() if key != "clientConnection"}
        written["leaderElection"] = {"leaderElect": False}
        running.programs.append(
            running.close.enter_context(self.plane.scheduler(written, f"kube-scheduler-{running.pod}"))
        )

    async def _begin_our_daemon(self, workload: Workload, running: Running) -> None:
        settings = self.nodes[workload.node].files.own / "settings.yaml"
        settings.write_text((await self._config_map(workload.namespace, "topogpu-device-plugin"))["settings.yaml"])
        found = await self._get(f"/apis/apps/v1/namespaces/{workload.namespace}/daemonsets/{workload.name}")
        own = self.nodes[workload.node].files.own / "our-kubeconfig"
        words = [*self._daemon("run", workload.node), f"--config={settings}", "--metrics-bind-address="]
        words += ["--kubeconfig", await self._kubeconfig(workload, running.pod, own, found)]
        self._start(running, workload, words, self.daemon_environment(workload.node))

    def _clean(self, workload: Workload) -> None:
        words = [*self._daemon("uninstall-node", workload.node), "--kubeconfig", self.plane.kubeconfig()]
        deadline = time.monotonic() + LONGEST_SECONDS
        while True:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.5)

    def ask(self, node: str, command: str) -> str:
        """A command of our daemon's on the node, and what it prints."""
        words = [*self._daemon(command, node), "--kubeconfig", self.plane.kubeconfig()]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=self.daemon_environment(node), timeout=120
        )
        return done.stdout + done.stderr

    def daemon_environment(self, node: str) -> dict[str, str]:
        return {**os.environ, MACHINE_FILE_VARIABLE: str(self.nodes[node].files.own / "machine")}

    def _daemon(self, command: str, name: str) -> list[str]:
        node = self.nodes[name]
        folders = {
            "--kubelet-root": node.root,
            "--cdi-directory": node.root / "cdi",
            "--hook-path": node.root / "hook",
        }
        if command != "uninstall-node":
            folders |= {"--host-root": node.root, "--nvml-library": node.files.library}
        # As HAMi's plugin does, it gives a container parts of several GPUs.
        flags = {**folders, "--limits": "driver,hami-core,unenforced"}
        words = [sys.executable, "-m", "deviceplugin", command, "--node-name", name]
        return words + [f"{flag}={value}" for flag, value in flags.items()]

    def _start(self, running: Running, workload: Workload, words: list[str], environment: Mapping[str, str]) -> Program:
        variables = [f"{name}={value}" for name, value in environment.items()]
        program = Program(["env", *variables, *words], self.folder / f"{running.pod}.log")
        running.programs.append(program)
        return program

    def log(self, running: Running) -> str:
        return (self.folder / f"{running.pod}.log").read_text(errors="replace")

    def logs(self, name: str) -> str:
        """Of all pods that the workload has had."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"{name}-*.log")))

    async def _write_device_config(self, folder: Path) -> None:
        config = await self._config_map(HAMI_NAMESPACE, "hami-scheduler-device")
        (folder / "device-config.yaml").write_text(config["device-config.yaml"])

    async def _config_map(self, namespace: str, name: str) -> dict[str, str]:
        found: dict[str, str] = (await self._get(f"/api/v1/namespaces/{namespace}/configmaps/{name}"))["data"]
        return found

    async def _kubeconfig(
        self, workload: Workload, pod: str, path: Path, found: JsonObject, authority: str = ""
    ) -> str:
        """Of the workload's service account; on a node the token says for which pod it is."""
        account = found["spec"]["template"]["spec"]["serviceAccountName"]
        request: JsonObject = {"spec": {"expirationSeconds": 7200}}
        if pod:
            made = await self._get(f"/api/v1/namespaces/{workload.namespace}/pods/{pod}")
            bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": made["metadata"]["uid"]}
            request["spec"]["boundObjectRef"] = bound
        accounts = f"/api/v1/namespaces/{workload.namespace}/serviceaccounts"
        answer = await self.peer.create(f"{accounts}/{account}/token", request)
        document = yaml.safe_load(Path(self.plane.kubeconfig()).read_text())
        document["users"][0]["user"] = {"token": answer["status"]["token"]}
        if authority:
            document["clusters"][0]["cluster"]["certificate-authority"] = authority
        path.write_text(yaml.safe_dump(document))
        return str(path)

    async def _get(self, path: str) -> JsonObject:
        status, found = await self.peer.send("GET", path)
        assert status == 200, found
        return found


def _fits(spec: JsonObject, labels: Mapping[str, str]) -> bool:
    """By the node selector and by terms with the operator In, the only ones used."""
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = affinity["nodeSelectorTerms"] if affinity else [{"matchExpressions": []}]
    return any(all(labels.get(one["key"]) in one["values"] for one in term["matchExpressions"]) for term in terms)


def pod(
    name: str,
    *containers: Mapping[str, int],
    init: tuple[Mapping[str, int], ...] = (),
    annotations: Mapping[str, str] | None = None,
) -> JsonObject:
    """Of each container what it asks for: `{"gpu": 1, "gpumem": 4000}`. A Job's, and passed over by HAMi's webhook."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"job-of-{name}", "controller": True}
    metadata = {
        "name": name,
        "annotations": dict(annotations or {}),
        "labels": {"hami.io/webhook": "ignore"},
        "ownerReferences": [owner],
    }
    spec = {
        "schedulerName": "hami-scheduler",
        "terminationGracePeriodSeconds": 0,
        "initContainers": [_container(f"init{n}", amounts) for n, amounts in enumerate(init)],
        "containers": [_container(f"c{n}", amounts) for n, amounts in enumerate(containers)],
    }
    return {"metadata": metadata, "spec": spec}


def _container(name: str, amounts: Mapping[str, int]) -> JsonObject:
    limits = {f"nvidia.com/{resource}": str(amount) for resource, amount in amounts.items()}
    return {"name": name, "image": "example.com/work:1", "resources": {"limits": limits}}
