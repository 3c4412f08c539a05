"""Reads the cluster's objects from kubectl or a file (edge).

kubectl is the client and handles contexts, credentials and proxies, so this works wherever `kubectl get pods` works.
Rights needed: list nodes, pods and resourcequotas.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from kubectl_topogpu.cluster import Objects
from proto.kubernetes.objects import Node, Object, ObjectList, Pod, ResourceQuota

T = TypeVar("T", bound=Object)

_PAGE = 2000
_SECONDS = 60
_HOW = "kubectl get nodes,pods,resourcequotas -A -o json"


class Unreadable(Exception):
    """The objects cannot be read. The message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Options for kubectl; empty values leave the choice to kubectl."""

    kubeconfig: str = ""
    context: str = ""

    @property
    def flags(self) -> Sequence[str]:
        given = (("--kubeconfig", self.kubeconfig), ("--context", self.context))
        return [f"{name}={value}" for name, value in given if value]


def live(connection: Connection) -> Objects:
    """Reads the objects. If quotas may not be listed, it reads without them. Raises Unreadable."""
    with ThreadPoolExecutor(3) as threads:
        nodes = threads.submit(_all, connection, "/api/v1/nodes", Node)
        pods = threads.submit(_all, connection, "/api/v1/pods", Pod)
        quotas = threads.submit(_all, connection, "/api/v1/resourcequotas", ResourceQuota)
        return Objects(nodes=nodes.result(), pods=pods.result(), quotas=quotas.result())


def namespace(connection: Connection) -> str:
    """Returns the namespace of the context. Raises Unreadable."""
    template = "jsonpath={.contexts[0].context.namespace}"
    return _run(connection, ["config", "view", "--minify", "--output", template]).decode().strip() or "default"


def _all(connection: Connection, path: str, kind: type[T]) -> tuple[T, ...]:
    found: list[T] = []
    token = ""
    while True:
        query = f"?limit={_PAGE}" + (f"&continue={token}" if token else "")
        body = _run(connection, ["get", "--raw", path + query])
        try:
            page = msgspec.json.decode(body, type=ObjectList[kind])  # type: ignore[valid-type]
        except msgspec.DecodeError as error:
            raise Unreadable(f"the API server's answer to {path} cannot be read: {error}") from error
        found += page.items
        token = page.metadata.continue_
        if not token:
            return tuple(found)


def _run(connection: Connection, arguments: Sequence[str]) -> bytes:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise Unreadable("kubectl is not in PATH; install it, or give a file with --from")
    try:
        done = subprocess.run(  # noqa: S603 - kubectl, with the user's words as single arguments
            [kubectl, *connection.flags, *arguments], capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unreadable(f"kubectl {' '.join(arguments)} had no answer within {_SECONDS} s") from error
    if done.returncode:
        raise Unreadable(" ".join(done.stderr.decode(errors="replace").split()) or f"kubectl {arguments[0]} failed")
    return done.stdout


def from_file(file: str) -> Objects:
    """Reads what `kubectl get nodes,pods,resourcequotas -A -o json` printed; - is standard input. Raises Unreadable."""
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        document = json.loads(text)
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{file}: is not JSON ({error}); write it with {_HOW}") from error
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise Unreadable(f"{file}: has no list of objects; write it with {_HOW}")
    objects = Objects(
        nodes=_of_kind(file, items, "Node", Node),
        pods=_of_kind(file, items, "Pod", Pod),
        quotas=_of_kind(file, items, "ResourceQuota", ResourceQuota),
    )
    if not objects.nodes:
        raise Unreadable(f"{file}: lists no node; write it with {_HOW}")
    return objects


def _of_kind(file: str, items: Sequence[object], name: str, kind: type[T]) -> tuple[T, ...]:
    found = []
    for at, item in enumerate(items):
        if not isinstance(item, dict) or item.get("kind") != name:
            continue
        try:
            found.append(msgspec.convert(item, kind))
        except (msgspec.ValidationError, RecursionError) as error:
            raise Unreadable(f"{file}: items[{at}]: {error}") from error
    return tuple(found)
