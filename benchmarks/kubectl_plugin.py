"""Time and memory of `kubectl topogpu` on a large cluster, beside kubectl alone: `python -m benchmarks.kubectl_plugin`.

A server answers lists page by page, as an API server does, with pods of 3.6 kB that all hold a share of a GPU. The
table shows each program's CPU seconds and largest memory. The first row is kubectl alone, which passes on the same
pages of pods; the kubectl that the plugin starts takes about as long, beside what is shown.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from proto.annotations import keys
from proto.annotations.node_register import encode_register
from proto.devices import Device, DeviceUUID

GPUS = 8
MEMORY_MIB = 81_920
LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8k", "nvidia.com/gpucores": "20"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The time and memory that a program took."""

    cpu_seconds: float
    memory_mib: int


class Lists:
    """Answers to lists of nodes, pods and quotas."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._numbers = {"nodes": nodes, "pods": pods, "resourcequotas": 0}
        self._pods_of_a_node = max(pods // nodes, 1)
        filler = [{"name": f"VARIABLE_{at}", "value": "x" * 40} for at in range(40)]
        self._pod = json.dumps(
            {
                "metadata": {
                    "name": "train-NUMBER",
                    "namespace": "ml",
                    "uid": "00000000-0000-0000-0000-NUMBER",
                    "creationTimestamp": "2030-01-01T00:00:00Z",
                    "annotations": {keys.DEVICES_ALLOCATED: "GPU-NODE-GPUNUMBER,NVIDIA,8000,20:;"},
                },
                "spec": {
                    "nodeName": "node-NODE",
                    "containers": [
                        {
                            "name": "main",
                            "env": filler,
                            "resources": {
                                "limits": {
                                    "nvidia.com/gpu": "1",
                                    "nvidia.com/gpumem": "8k",
                                    "nvidia.com/gpucores": "20",
                                },
                                "requests": {"cpu": "4", "memory": "16Gi"},
                            },
                        }
                    ],
                },
                "status": {"phase": "Running"},
            }
        )

    def page(self, path: str, query: str) -> bytes:
        kind = path.rpartition("/")[2]
        asked = {key: int(values[0]) for key, values in parse_qs(query).items() if key in ("limit", "continue")}
        start = asked.get("continue", 0)
        end = min(start + asked.get("limit", 500), self._numbers[kind])
        make = self._pod_json if kind == "pods" else self._node_json
        metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < self._numbers[kind] else {})}
        name = {"nodes": "NodeList", "pods": "PodList", "resourcequotas": "ResourceQuotaList"}[kind]
        head = f'{{"kind":"{name}","apiVersion":"v1","metadata":{json.dumps(metadata)},"items":['
        return (head + ",".join(map(make, range(start, end))) + "]}").encode()

    def _pod_json(self, number: int) -> str:
        node, place = divmod(number, self._pods_of_a_node)
        text = self._pod.replace("GPUNUMBER", str(place % GPUS)).replace("NUMBER", f"{number:012}")
        return text.replace("NODE", str(node))

    def _node_json(self, number: int) -> str:
        gpus = [
            Device(
                uuid=DeviceUUID(f"GPU-{number}-{at}"),
                index=at,
                replicas=10,
                memory_mib=MEMORY_MIB,
                cores=100,
                type="NVIDIA A100-SXM4-80GB",
                numa=at // 4,
                mode="hami-core",
                healthy=True,
            )
            for at in range(GPUS)
        ]
        metadata = {"name": f"node-{number}", "annotations": {keys.NODE_REGISTER: encode_register(gpus)}}
        return json.dumps({"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": "80"}}})


def serve(lists: Lists) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            body = lists.page(parts.path, parts.query) if parts.path.startswith("/api/v1/") else b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def spent(command: Sequence[str]) -> Spent:
    """Runs the command. Raises CalledProcessError."""
    measure = (
        "import json, os, resource, sys; sys.argv = sys.argv[1:];"
        "pid = os.fork();"
        "pid or os.execvp(sys.argv[0], sys.argv);"
        "_, status, used = os.wait4(pid, 0);"
        "print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss]), file=sys.stderr)"
    )
    with Path(os.devnull).open("w") as nowhere:
        done = subprocess.run(
            [sys.executable, "-c", measure, *command], stdout=nowhere, stderr=subprocess.PIPE, text=True, check=True
        )
    status, own, memory = json.loads(done.stderr.splitlines()[-1])
    if status:
        raise subprocess.CalledProcessError(status, list(command), stderr=done.stderr)
    return Spent(cpu_seconds=own, memory_mib=memory // 1024)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubectl_plugin", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=160_000)
    given = parser.parse_args()
    server = serve(Lists(given.nodes, given.pods))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        address = f"http://127.0.0.1:{server.server_address[1]}"
        kubeconfig.write_text(
            f"apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{address}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n"
        )
        print(f"{given.nodes} nodes, {given.pods} pods\n")
        print("| command | CPU s | largest memory MiB |\n|---|---|---|")
        pages = " ".join(f"'/api/v1/pods?limit=1000&continue={at}'" for at in range(0, given.pods, 1000))
        raw = f"for page in {pages}; do kubectl --kubeconfig={kubeconfig} get --raw $page; done"
        plugin = [sys.executable, "-m", "kubectl_topogpu"]
        for name, command in (
            ("kubectl get --raw, a page at a time", ["bash", "-ec", raw]),
            ("top --level nodes", [*plugin, "top", "--level", "nodes"]),
            ("top", [*plugin, "top"]),
            ("waste", [*plugin, "waste"]),
            ("frag", [*plugin, "frag"]),
            ("fit --gpus 2 --memory 8000", [*plugin, "fit", "--gpus", "2", "--memory", "8000"]),
        ):
            found = spent(command if command[0] == "bash" else [*command, "--kubeconfig", str(kubeconfig)])
            print(f"| {name} | {found.cpu_seconds:.1f} | {found.memory_mib} |", flush=True)
    server.shutdown()


if __name__ == "__main__":
    main()
