"""Reads from the API server through kubectl (edge): contexts, credentials and proxies are those of `kubectl get pods`.

One `kubectl proxy` on a Unix socket in a folder of our own serves all requests, so kubectl starts and authenticates
once. It passes on nothing but GET. It ends with this process, however this one ends.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from threading import local
from typing import Any

import msgspec

from proto import decoding
from proto.kubernetes.objects import Pod, Status

_SECONDS = 60
_SHOWN_BYTES = 500
_CHUNK = 65_536
# The shell waits for the end of its standard input, which this process holds, and then ends the group.
_GUARD = '"$@" & exec >&- 2>&-; read -r _; kill 0'
_READS = ("--reject-methods=^(POST|PUT|PATCH|DELETE|CONNECT|OPTIONS)$", "--accept-paths=^/api/v1/")


class ObjectsUnreadable(Exception):
    """The objects cannot be read. The message is for people."""


class RequestRefused(ObjectsUnreadable):
    """The API server answered with an error. `code` is its HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Options for kubectl; empty values leave the choice to kubectl."""

    kubeconfig: str = ""
    context: str = ""

    @property
    def flags(self) -> Sequence[str]:
        given = (("--kubeconfig", self.kubeconfig), ("--context", self.context))
        return [f"{name}={value}" for name, value in given if value]


class Api:
    """GET requests to the API server, from any thread."""

    def __init__(self, path: str) -> None:
        """`path` is the socket of `kubectl proxy`."""
        self._path = path
        self._own = local()

    def get(self, path: str, most: int | None = None, seconds: float = _SECONDS) -> bytes:
        """Returns the body. `most` bytes are read of one that a pod writes, within `seconds`. Raises Refused, or
        Unreadable if there is no answer.
        """
        http = self._own.__dict__.setdefault("http", _UnixHttp(self._path))
        try:
            if http.sock is None:
                http.connect()
            http.sock.settimeout(seconds)
            http.request("GET", path)
            answer = http.getresponse()
            body = answer.read() if most is None else _read(answer, most, seconds)
        except (OSError, HTTPException) as error:
            http.close()
            late = isinstance(error, TimeoutError)
            reason = f"it takes more than {seconds:g} s" if late else str(error) or type(error).__name__
            raise ObjectsUnreadable(f"kubectl does not pass on the answer to {path}: {reason}") from error
        if answer.status != 200:
            raise RequestRefused(answer.status, _message(path, answer.status, body))
        return body


def _read(answer: HTTPResponse, most: int, seconds: float) -> bytes:
    ends, body = time.monotonic() + seconds, bytearray()
    while part := answer.read1(_CHUNK):
        body += part
        if len(body) > most:
            raise HTTPException(f"it has more than {most >> 10} KiB")
        if time.monotonic() > ends:
            raise TimeoutError
    return bytes(body)


class _UnixHttp(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@contextmanager
def connected(connection: Connection) -> Iterator[Api]:
    """Starts kubectl, and ends it. Raises Unreadable."""
    with tempfile.TemporaryDirectory(prefix="kubectl-topogpu-") as folder:
        path = str(Path(folder) / "api")
        command = [_kubectl(), *connection.flags, "proxy", f"--unix-socket={path}", *_READS]
        with (
            tempfile.TemporaryFile() as complaints,
            subprocess.Popen(  # noqa: S603 - kubectl, with the user's words as single arguments
                ["/bin/sh", "-c", _GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            ) as process,
        ):
            try:
                if process.stdout is None or not process.stdout.readline():
                    complaints.seek(0)
                    said = " ".join(complaints.read().decode(errors="replace").split())
                    raise ObjectsUnreadable(said or "kubectl proxy does not start")
                yield Api(path)
            finally:
                if process.stdin is not None:
                    process.stdin.close()


def run(connection: Connection, arguments: Sequence[str]) -> str:
    """Returns what kubectl prints. Raises Unreadable."""
    try:
        done = subprocess.run(  # noqa: S603 - kubectl, with the user's words as single arguments
            [_kubectl(), *connection.flags, *arguments],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise ObjectsUnreadable(f"kubectl {' '.join(arguments)} had no answer within {_SECONDS} s") from error
    if done.returncode:
        raise ObjectsUnreadable(
            " ".join(done.stderr.decode(errors="replace").split()) or f"kubectl {arguments[0]} failed"
        )
    return done.stdout.decode(errors="replace")


def read_pod(connection: Connection, where: str, name: str) -> Pod:
    """Returns the pod of this namespace. Raises Unreadable."""
    body = run(connection, ["get", "pod", f"--namespace={where}", "--output=json", "--", name])
    found: Pod = decoded(f"pod {where}/{name}", body.encode(), Pod)
    return found


def annotate(connection: Connection, where: str, name: str, key: str, value: str) -> None:
    """Writes an annotation of the pod. Raises Unreadable."""
    run(connection, ["annotate", "pod", f"--namespace={where}", "--overwrite", "--", name, f"{key}={value}"])


def namespace(connection: Connection) -> str:
    """Returns the namespace of the context. Raises Unreadable."""
    template = "jsonpath={.contexts[0].context.namespace}"
    return run(connection, ["config", "view", "--minify", "--output", template]).strip() or "default"


def _kubectl() -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ObjectsUnreadable("kubectl is not in PATH; install it, or give a file with --state")
    return kubectl


def _message(path: str, code: int, body: bytes) -> str:
    try:
        message = decoding.decoded(body, Status).message
    except msgspec.DecodeError:
        text = " ".join(body[:_SHOWN_BYTES].decode(errors="replace").split())
        return f"what answers to {path} is no Kubernetes API server, check the context: {code} {text}"
    return message or f"the server answers {code} to {path} without a reason; is it a Kubernetes API server?"


def decoded(path: str, body: bytes, kind: Any) -> Any:
    """Raises Unreadable."""
    try:
        return decoding.decoded(body, kind)
    except msgspec.DecodeError as error:
        raise ObjectsUnreadable(f"the API server's answer to {path} cannot be read: {error}") from error
