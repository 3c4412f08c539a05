"""One node and its control plane on a network of their own, as far as a user's commands can tell a cluster.

Real: etcd, kube-apiserver (Node and RBAC authorization, its default admission), kube-controller-manager, kube-proxy,
a default kube-scheduler, kubelet as its Node, containerd, runc with seccomp, CNI's bridge. Not there: a cluster DNS,
a program that enforces NetworkPolicies, a second node, and a GPU.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from daemonset import helm
from simulation.nvml.build import build_library
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, Program, free_port
from tests.deploy import nvidia_runtime
from tests.deploy.binaries import DeployBinaries
from tests.node import image
from tests.node.binaries import NodeBinaries
from tests.node.real_node import NODE, RealNode
from tests.node.runtimes import PodNetwork

JsonObject = dict[str, Any]
ROOT = Path(__file__).parents[2]
ADDRESS = "10.88.0.1"
"""Of the node and of the API server."""
_PODS = "10.88.0.0/16"
_CNI = {
    "cniVersion": "1.0.0",
    "name": "bridge",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": _PODS, "rangeStart": "10.88.1.1", "gateway": ADDRESS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
# A bridge without an address of its own takes another one whenever a pod leaves, and connections stall.
_LINKS = (
    "ip link set lo up",
    "ip link add cni0 address 0a:58:0a:58:00:01 type bridge",
    f"ip addr add {ADDRESS}/16 dev cni0",
    "ip link set cni0 up",
    f"ip route add default via {ADDRESS}",
)
_LONGEST_SECONDS = 180.0


class CommandFailed(Exception):
    """A user's command; holds its words."""


def missing() -> str:
    """What this process lacks to have a network of its own; empty when it has it."""
    lacking = [name for name in ("ip", "iptables", "iptables-restore") if shutil.which(name) is None]
    if lacking:
        return f"it needs {' and '.join(lacking)} (Debian: iproute2, iptables)"
    addresses = subprocess.run(
        ["ip", "-oneline", "address", "show", "scope", "global"], capture_output=True, check=True
    )
    is_shared = bool(addresses.stdout.strip())
    return "it needs a network of its own, which `make test-deploy` gives it as root" if is_shared else ""


class _Plane(ControlPlane):
    """Reached by pods, and with its default admission."""

    def __init__(self, binaries: Binaries, folder: Path) -> None:
        super().__init__(binaries, folder)
        self._port = 443
        self.url = f"https://{ADDRESS}:{self._port}"

    def _api_server_flags(self) -> list[str]:
        replaced = ("--bind-address", "--disable-admission-plugins", "--authorization-mode")
        return [
            *(flag for flag in super()._api_server_flags() if not flag.startswith(replaced)),
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        ]


class _Node(RealNode):
    """Its kubelet is nobody but itself for the API server, reports as often as by default, and takes `kubectl exec`."""

    def _write_credentials(self, plane: ControlPlane) -> None:
        shutil.copy(plane.kubeconfig(f"system:node:{NODE}"), self._folder / "kubelet.kubeconfig")

    def _kubelet_configuration(self) -> JsonObject:
        configuration = super()._kubelet_configuration()
        del configuration["nodeStatusUpdateFrequency"]
        return {**configuration, "address": "0.0.0.0"}


@dataclass
class Cluster:
    """A user's commands on it. All methods block."""

    plane: ControlPlane
    node: RealNode
    release: str
    """Such as v1.37."""
    folder: Path

    def kubectl(self, command: str, document: str = "") -> str:
        """What it prints. Raises CommandFailed."""
        return self._run([self.plane.binary("kubectl"), *shlex.split(command)], document)

    def helm(self, command: str) -> str:
        """As above."""
        return self._run([str(helm.find()), *shlex.split(command)])

    def shell(self, command: str) -> str:
        """As above, of a line with `kubectl` or `helm` as a document shows it, typed in the repository."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        for name, path in (("kubectl", self.plane.binary("kubectl")), ("helm", helm.find())):
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(path)
        return self._run(["bash", "-ec", f"PATH={shlex.quote(str(programs))}:$PATH; {command}"])

    def apply(self, *documents: JsonObject) -> None:
        self.kubectl("apply -f -", yaml.safe_dump_all(documents))

    def get(self, what: str) -> JsonObject:
        found: JsonObject = json.loads(self.kubectl(f"get {what} -o json"))
        return found

    def items(self, what: str) -> list[JsonObject]:
        items: list[JsonObject] = self.get(what)["items"]
        return items

    def until(self, fact: Callable[[], bool], what: str, seconds: float = _LONGEST_SECONDS) -> None:
        """Raises TimeoutError with what the pods look like."""
        deadline = time.monotonic() + seconds
        while not fact():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:g} s: {what}\n{self.state()}")
            time.sleep(0.2)

    def state(self) -> str:
        """For people."""
        return "\n".join(
            self.kubectl(command)
            for command in ("get pods -A -o wide", "get events -A --sort-by=.metadata.creationTimestamp")
        )

    @contextmanager
    def without_nvidia_runtime(self) -> Iterator[None]:
        """Containers that start meanwhile are runc's alone, as on a node without GPUs."""
        settings = _runtime(self.folder).with_suffix(".json")
        before = settings.read_text()
        settings.write_text(json.dumps(json.loads(before) | {"uuids": []}))
        yield
        settings.write_text(before)

    def import_image(self, archive: Path, *names: str) -> None:
        """Into containerd, under each of the names."""
        first, *others = names
        # A file of its own: where the machine has an overlay it may still see an earlier one of the same path.
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".tar") as copy:
            # containerd keeps the name inside, too, and one name leads to one image.
            image.rename(archive, first, Path(copy.name))
            self._ctr("images", "import", "--local", copy.name)
        for name in others:
            self._ctr("images", "tag", "--force", first, name)

    def _ctr(self, *words: str) -> str:
        return self.node.machine.run(self.node.binary("ctr"), "--namespace", "k8s.io", *words)

    def _run(self, words: Sequence[str], document: str = "") -> str:
        environment = {"KUBECONFIG": self.plane.kubeconfig(), "PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        done = subprocess.run(
            words, input=document, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=ROOT
        )
        if done.returncode:
            raise CommandFailed(f"{' '.join(words[1:])}: {done.stdout}{done.stderr}")
        return done.stdout


@contextmanager
def running(
    binaries: Binaries, node_binaries: NodeBinaries, more: DeployBinaries, release: str, folder: Path
) -> Iterator[Cluster]:
    """Ready: the Node is, and its containerd has the tests' own image and kube-scheduler's."""
    for command in _LINKS:
        subprocess.run(command.split(), check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Path("/proc/sys/net/bridge/bridge-nf-call-iptables").write_text("1")
    with ExitStack() as stack:
        plane = stack.enter_context(_Plane(binaries, folder / "plane"))
        stack.enter_context(_program(_controller_manager(plane, more, folder), folder / "kube-controller-manager.log"))
        stack.enter_context(plane.scheduler({**_scheduler(), "leaderElection": {"leaderElect": False}}))
        runtime = _runtime(folder)
        network = PodNetwork(configuration=_CNI, plugins=more.plugins, runc=runtime)
        archive = image.write_image(folder)
        node = _Node(node_binaries, plane, archive, layered=("/usr/local", "/tmp"), network=network)
        stack.callback(node.discard, folder)
        _write_runtime(runtime, node, more)
        cluster = Cluster(plane, node, release, folder)
        # A kubelet that is slower to register its Node than to write its CSINode never becomes ready.
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        node.ensure_kubelet()
        ready = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
        cluster.until(lambda: cluster.kubectl(f"get nodes -o '{ready}'") == "True", "the Node is ready")
        stack.enter_context(_program(_proxy(plane, more, folder), folder / "kube-proxy.log"))
        cluster.import_image(_kube_scheduler_image(binaries, folder), _kube_scheduler_name(cluster))
        yield cluster


@contextmanager
def _program(command: Sequence[str], log: Path) -> Iterator[Program]:
    program = Program(command, log)
    try:
        yield program
    finally:
        program.stop()


def _scheduler() -> JsonObject:
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def _controller_manager(plane: ControlPlane, more: DeployBinaries, folder: Path) -> list[str]:
    return [
        more.path("kube-controller-manager"),
        f"--kubeconfig={plane.kubeconfig('system:kube-controller-manager')}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={folder / 'plane' / 'service-account.pem'}",
        f"--root-ca-file={plane.certificate}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        f"--cert-dir={folder}",
        "--v=1",
    ]


def _proxy(plane: ControlPlane, more: DeployBinaries, folder: Path) -> list[str]:
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": NODE,
        "clusterCIDR": _PODS,
        "clientConnection": {"kubeconfig": plane.kubeconfig("system:kube-proxy")},
        "healthzBindAddress": f"127.0.0.1:{free_port()}",
        "metricsBindAddress": f"127.0.0.1:{free_port()}",
        "iptables": {"localhostNodePorts": False},
        # Sizes of the whole kernel's tables stay as they are.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    path = folder / "kube-proxy.yaml"
    path.write_text(yaml.safe_dump(document))
    return [more.path("kube-proxy"), f"--config={path}", "--v=2"]


def _runtime(folder: Path) -> Path:
    """The path of the program that containerd starts containers with."""
    return folder / "nvidia-container-runtime"


def _write_runtime(path: Path, node: RealNode, more: DeployBinaries) -> None:
    settings: Mapping[str, object] = {
        "runc": str(more.runc),
        "library": str(build_library()),
        "machine": str(node.machine.folder / "machine"),
        "sys": str(node.machine.folder / "sys"),
        "uuids": [node.uuid(gpu) for gpu in range(len(node.description.gpus))],
    }
    described = path.with_suffix(".json")
    described.write_text(json.dumps(settings))
    # A sandbox of its own mounts the control groups below /sys, whatever is bound there.
    (node.machine.folder / "sys" / "fs" / "cgroup").mkdir(parents=True, exist_ok=True)
    program = shlex.quote(str(Path(nvidia_runtime.__file__)))
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {program} {described} "$@"\n')
    path.chmod(0o755)


def _kube_scheduler_name(cluster: Cluster) -> str:
    version = json.loads(cluster.kubectl("version -o json"))["serverVersion"]["gitVersion"]
    return f"registry.k8s.io/kube-scheduler:{version}"


def _kube_scheduler_image(binaries: Binaries, folder: Path) -> Path:
    """The release's own image is distroless too: the program, and nothing else that matters."""
    program = Path(binaries.path("kube-scheduler")).read_bytes()
    archive = folder / "kube-scheduler.tar"
    packed = image.pack(
        {"usr/local/bin/kube-scheduler": program}, "kube-scheduler:test", {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
    )
    archive.write_bytes(packed)
    return archive
