"""A real control plane on loopback: etcd, kube-apiserver and, when asked, kube-scheduler.

There is no controller manager and no kubelet: no service accounts, no node lifecycle, and pods that are being deleted
stay until somebody deletes them for good.
"""

import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cluster.binaries import Binaries

USERS = {
    "admin": "system:masters",
    "system:kube-scheduler": "",
    "topogpu-scheduler": "",
    "topogpu-device-plugin": "",
    "stranger": "",
    "system:node:node-a": "system:nodes",
    "system:kube-proxy": "",
    "system:kube-controller-manager": "",
}
"""Everybody who may log in, and the group they are in; the token is the name. A stranger has no rights."""
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:topogpu-system"]}, {"level": "None"}],
}
"""Of every request of our own service accounts kube-apiserver writes down what was asked, and how it was answered."""
START_SECONDS = 120.0
_ONCE_WE_ARE_GONE = 'cat; kill -KILL "$0"'
"""The kernel ends the input of this `cat` with the process that holds its other end."""
_HELD: list[socket.socket] = []
_SHOWN_LINES = 15


class ControlPlaneFailed(Exception):
    """A program ended or never became ready; holds its last lines."""


class Program:
    """One program, its output in a file. It ends with us, however we end."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self._output: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._survivor = subprocess.Popen(
            ["sh", "-c", _ONCE_WE_ARE_GONE, str(self.pid)], stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def check_running(self) -> None:
        """Raises ControlPlaneFailed."""
        if not self.is_running:
            raise ControlPlaneFailed(f"{self._log.stem} ended with {self._process.returncode}:\n{self.last_lines()}")

    def stop(self, how: signal.Signals = signal.SIGTERM, grace_seconds: float = 20.0) -> None:
        """`how`, then SIGKILL after the grace."""
        self._process.send_signal(how)
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._survivor.kill()
        self._survivor.communicate()
        self._output.close()

    def last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])


class ControlPlane:
    """`with ControlPlane(binaries, folder):` is ready to be used; everything it writes lies in the folder."""

    def __init__(self, binaries: Binaries, folder: Path, *, gates: str = "", apis: str = "") -> None:
        """`gates` are features to turn on, `apis` what else kube-apiserver serves; both as flags say it."""
        self._binaries = binaries
        self._folder = folder
        self._gates = [f"--feature-gates={gates}"] if gates else []
        self._apis = [f"--runtime-config={apis}"] if apis else []
        self._etcd_port, self._peer_port, self._port = free_port(), free_port(), free_port()
        self._etcd: Program | None = None
        self._api_server: Program | None = None
        self.url = f"https://127.0.0.1:{self._port}"
        self.certificate = str(folder / "apiserver.crt")
        """Signed by itself; kube-apiserver writes it when it starts."""

    def __enter__(self) -> "ControlPlane":
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_credentials()
        try:
            self._etcd = self._start_etcd()
            self.start_api_server()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.stop_api_server()
        if self._etcd is not None:
            self._etcd.stop()
            self._etcd = None

    def start_api_server(self) -> None:
        """On the same port as before, if there was a before. Raises ControlPlaneFailed."""
        program = self._start("kube-apiserver", self._api_server_flags())
        self._api_server = program
        wait(program, lambda: self._status("/readyz") == 200)

    def stop_api_server(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._api_server is not None:
            self._api_server.stop(how)
            self._api_server = None

    def compact(self) -> None:
        """etcd forgets all history."""
        revision = int(self._etcd_call("kv/range", {"key": "AA=="})["header"]["revision"])
        self._etcd_call("kv/compaction", {"revision": str(revision), "physical": True})

    def back_up(self) -> None:
        """Copies etcd's data; the control plane is stopped meanwhile."""
        self.stop()
        shutil.copytree(self._folder / "etcd", self._folder / "backup")
        self._etcd = self._start_etcd()
        self.start_api_server()

    def restore(self) -> None:
        """Goes back to the backup: versions that were given since are given again."""
        self.stop()
        shutil.rmtree(self._folder / "etcd")
        shutil.copytree(self._folder / "backup", self._folder / "etcd")
        self._etcd = self._start_etcd()
        self.start_api_server()

    def kubeconfig(self, user: str = "admin") -> str:
        """The path of a kubeconfig of one of USERS; written once, because programs may be reading it."""
        path = self._folder / f"{user.replace(':', '-')}.kubeconfig"
        if path.exists():
            return str(path)
        cluster = {"server": self.url, "certificate-authority": self.certificate}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
            "current-context": "real",
        }
        unfinished = path.with_suffix(".new")
        unfinished.write_text(yaml.safe_dump(document))
        unfinished.replace(path)
        return str(path)

    @contextmanager
    def scheduler(self, configuration: Mapping[str, Any], name: str = "kube-scheduler") -> Iterator[Program]:
        """kube-scheduler with this KubeSchedulerConfiguration, as its own user; its output in `<name>.log`."""
        connection = {"kubeconfig": self.kubeconfig("system:kube-scheduler"), "qps": 1000, "burst": 1000}
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"clientConnection": connection} | dict(configuration)))
        flags = [f"--config={path}", "--secure-port=0", "--v=2", *self._gates]
        program = self._start("kube-scheduler", flags, name)
        try:
            yield program
        finally:
            program.stop()

    def binary(self, name: str) -> str:
        """Its path."""
        return self._binaries.path(name)

    def kubectl(self, *arguments: str) -> str:
        """What it prints. Raises ControlPlaneFailed with its words."""
        command = [self._binaries.path("kubectl"), "--kubeconfig", self.kubeconfig(), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
        if done.returncode:
            raise ControlPlaneFailed(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def audited(self) -> list[dict[str, Any]]:
        """The audit events so far, oldest first."""
        path = self._folder / "audit.log"
        # The last line may not be written to its end.
        whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
        return [json.loads(line) for line in whole.splitlines()]

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _start_etcd(self) -> Program:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        flags = [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]
        program = self._start("etcd", flags)
        wait(program, lambda: status(f"{client}/health") == 200)
        return program

    def _api_server_flags(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._folder}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",  # as kubeadm does, and as daemons of nodes need it
            f"--service-account-key-file={self._folder / 'service-account.pem'}",
            f"--service-account-signing-key-file={self._folder / 'service-account.pem'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            f"--audit-policy-file={self._folder / 'audit.yaml'}",
            f"--audit-log-path={self._folder / 'audit.log'}",
            "--watch-cache=true",
            "--v=1",
            *self._gates,
            *self._apis,
        ]

    def _start(self, program: str, flags: Sequence[str], name: str = "") -> Program:
        return Program([self._binaries.path(program), *flags], self._folder / f"{name or program}.log")

    def _write_credentials(self) -> None:
        rows = [
            f'{user},{user},{user},"{group}"' if group else f"{user},{user},{user}" for user, group in USERS.items()
        ]
        (self._folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT))
        (self._folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self._folder / "service-account.pem").write_bytes(pem)

    def _status(self, path: str) -> int:
        try:
            tls = ssl.create_default_context(cafile=self.certificate)
        except OSError:
            return 0  # not written yet, or not to its end
        return status(self.url + path, tls)

    def _etcd_call(self, path: str, body: object) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/{path}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def free_port() -> int:
    """Ours until we end: bound here, so that the kernel gives it to nobody, but without listening, so that whoever is
    told its number may listen on it, again and again.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    return int(held.getsockname()[1])


def status(url: str, tls: ssl.SSLContext | None = None) -> int:
    """0 while nobody answers."""
    request = urllib.request.Request(url, headers={"Authorization": "Bearer admin"})
    try:
        with urllib.request.urlopen(request, timeout=5, context=tls) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ssl.SSLError):
        return 0


def wait(program: Program, ready: Callable[[], bool]) -> None:
    """Returns once it is ready. Raises ControlPlaneFailed."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        program.check_running()
        if time.monotonic() > deadline:
            raise ControlPlaneFailed(f"not ready within {START_SECONDS:g} s:\n{program.last_lines()}")
        time.sleep(0.05)
