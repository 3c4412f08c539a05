"""API servers for benchmarks: the embedded one as a process, and a real one."""

import asyncio
import multiprocessing
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from simulation.apiserver import EmbeddedApiServer
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane

_WRITING = frozenset({"create", "update", "patch", "delete", "POST", "PUT", "PATCH", "DELETE"})

Writes = Mapping[str, int]
"""Write requests, counted by what they write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An API server: how to reach it, and what was written to it."""

    name: str
    url: str
    kubeconfig: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool
    writes: Callable[[], Writes]


@contextmanager
def embedded(folder: Path) -> Iterator[Peer]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(_serve(theirs)), daemon=True)
    process.start()
    try:
        url, text = ours.recv()
        (folder / "kubeconfig").write_text(text)

        def writes() -> Writes:
            ours.send("writes")
            found: Writes = ours.recv()
            return found

        kubeconfig = str(folder / "kubeconfig")
        yield Peer(name="embedded", url=url, kubeconfig=kubeconfig, headers={}, tls=False, writes=writes)
    finally:
        process.terminate()
        process.join()


async def _serve(parent: Connection) -> None:
    async with EmbeddedApiServer() as server:
        parent.send((server.url, server.kubeconfig()))

        def answer() -> None:
            parent.recv()
            asked = [one for one in server.requests if one.verb in _WRITING]
            parent.send(Counter(f"{one.verb} {one.resource} {one.subresource}".strip() for one in asked))

        asyncio.get_running_loop().add_reader(parent.fileno(), answer)
        await asyncio.Event().wait()


@contextmanager
def real(binaries: Binaries, folder: Path, *, gates: str = "", apis: str = "") -> Iterator[tuple[Peer, ControlPlane]]:
    with ControlPlane(binaries, folder / "plane", gates=gates, apis=apis) as plane:
        headers = {"Authorization": "Bearer admin"}
        tls = ssl.create_default_context(cafile=plane.certificate)

        def writes() -> Writes:
            return _metered(plane.kubectl("get", "--raw", "/metrics"))

        kubeconfig = plane.kubeconfig()
        peer = Peer(name="real", url=plane.url, kubeconfig=kubeconfig, headers=headers, tls=tls, writes=writes)
        yield peer, plane


def _metered(metrics: str) -> Writes:
    """Returns kube-apiserver's own count of its requests. A client that gets 429 sends its request again."""
    counts: Counter[str] = Counter()
    for line in metrics.splitlines():
        if line.startswith("apiserver_request_total{"):
            labels, _, value = line.partition("{")[2].rpartition("} ")
            found = dict(one.split("=", 1) for one in labels.replace('"', "").split(",") if "=" in one)
            done = found.get("verb") in _WRITING and found.get("code", "").startswith("2")
            if done and found.get("resource") in ("pods", "events", "nodes"):
                verb = {"POST": "create", "PUT": "update"}.get(found["verb"], found["verb"].lower())
                counts[f"{verb} {found['resource']} {found['subresource']}".strip()] += int(float(value))
    return counts
