"""Records the state that the terminals show, and photographs the status page, from a simulated cluster.

`python docs/pictures/record.py`. The photographs need Chromium, and are left out without it.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from kubectl_topogpu.cluster import read_cluster
from kubectl_topogpu.sources import Recorded
from scheduler_ext.requests import RequestSettings

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
MACHINES = ("hgxh100-8x-h100-80g", "4x-a100-pcie-80g-bridged", "dgxa100-8x-a100-40g", "l40s")
SYSTEM = "topogpu-system"
PODS = ("topology-aware", "fraction", "several-containers", "percentage")
TEAMS = (
    *(("vision", "train-a", 4, 0, 0), ("vision", "train-b", 2, 0, 0), ("vision", "notebook-1", 1, 8192, 20)),
    *(("vision", "notebook-2", 1, 8192, 20), ("speech", "train-c", 4, 0, 0), ("speech", "infer-1", 1, 16384, 50)),
    *(("speech", "infer-2", 1, 16384, 50), ("speech", "infer-3", 1, 24576, 30), ("search", "embed-1", 1, 12288, 25)),
    *(("search", "embed-2", 1, 12288, 25), ("search", "embed-3", 1, 12288, 25), ("search", "rank-1", 1, 20480, 40)),
    *(("search", "rank-2", 1, 4096, 0), ("platform", "tests-1", 1, 2048, 10), ("platform", "tests-2", 1, 2048, 10)),
    ("platform", "batch", 4, 0, 0),
)
"""Namespace, name, GPUs, MiB (0: the whole GPU) and percent of cores of each pod."""
WAITING = ("vision", "sweep", 6, 0, 0)
SET = ("search", "index", 4, 90_000, 0)
"""A StatefulSet of two, whose pods wait, too."""
REFUSED = "refuse nvmlDeviceGetComputeRunningProcesses 3"  # NVML_ERROR_NOT_SUPPORTED
BUSY = (96, 71, 3, 88, 64, 42, 99, 0)
USE_SECONDS = 20.0
"""The time until the extender has read the daemons again."""
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
LONGEST_SECONDS = 60.0


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def post(address: str, body: Any) -> None:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request).close()


def create(server: str, pod: Any) -> None:
    namespace = pod["metadata"].get("namespace", "default")
    post(f"{server}/api/v1/namespaces/{namespace}/pods", pod)


def create_set(server: str, namespace: str, name: str, *amounts: int) -> None:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": team_pod(namespace, name, *amounts)["spec"]}
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}
    post(f"{server}/apis/apps/v1/namespaces/{namespace}/statefulsets", body)


def team_pod(namespace: str, name: str, gpus: int, memory_mib: int, cores: int) -> Any:
    limits = {"nvidia.com/gpu": gpus, "nvidia.com/gpumem": memory_mib, "nvidia.com/gpucores": cores}
    container = {"name": "main", "image": "busybox", "resources": {"limits": {k: v for k, v in limits.items() if v}}}
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def wait(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not fact():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {LONGEST_SECONDS:g} s: {what}")
        time.sleep(0.1)


def record(server: str) -> None:
    """As kubectl prints nodes, pods and quotas."""
    pods = [yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")) for name in PODS]
    large = yaml.safe_load((EXAMPLES / "topology-aware.yaml").read_text(encoding="utf-8"))
    large["metadata"]["name"] = "large"
    large["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 8
    for namespace in sorted({each[0] for each in TEAMS}):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        post(f"{server}/api/v1/namespaces", body)
    create_set(server, *SET)
    wait(lambda: settled(server) == 2, SET[1])
    teams = [team_pod(*each) for each in (*TEAMS, WAITING)]
    for number, pod in enumerate([*pods, *teams, large], start=3):
        create(server, pod)
        wait(lambda number=number: settled(server) == number, pod["metadata"]["name"])  # type: ignore[misc]
    items = []
    for kind, path in (("Node", "nodes"), ("Pod", "pods"), ("ResourceQuota", "resourcequotas")):
        found = [each for each in get(f"{server}/api/v1/{path}")["items"] if not is_system(each)]
        items += [{"apiVersion": "v1", "kind": kind, **item} for item in found]
    state = {"apiVersion": "v1", "kind": "List", "items": items}
    (HERE / "state.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def is_system(item: Any) -> bool:
    return bool(item["metadata"].get("namespace") == SYSTEM)


def use(directory: Path) -> None:
    """Lets the GPUs that are held compute."""
    cluster = read_cluster(Recorded(str(HERE / "state.json")).objects(), RequestSettings())
    for node in cluster.nodes:
        held = {gpu.device.index for gpu in node.gpus if gpu.holders}
        machine = directory / node.name / "machine"
        lines = [busy(line, held) for line in machine.read_text(encoding="utf-8").splitlines()]
        # Containers of the simulation have no processes, so the activity of the GPU is that of its only pod.
        lines.insert(lines.index("end"), REFUSED)
        fresh = machine.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        fresh.replace(machine)


def busy(line: str, held: set[int]) -> str:
    words = line.split()
    if words[:1] == ["usage"] and int(words[1]) in held:
        words[2] = str(BUSY[int(words[1]) % len(BUSY)])
    return " ".join(words)


def settled(server: str) -> int:
    """Pods that run, or that kube-scheduler has refused."""
    pods = [pod for pod in get(f"{server}/api/v1/pods")["items"] if not is_system(pod)]
    return sum(
        pod["status"].get("phase") == "Running"
        or any(one.get("reason") == "Unschedulable" for one in pod["status"].get("conditions", ()))
        for pod in pods
    )


def photograph(address: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1400, "height": 1180}, color_scheme=scheme)
            page.goto(address)
            page.get_by_text("Live").first.wait_for()
            page.get_by_text("default/large").first.wait_for()
            page.wait_for_timeout(1000 * USE_SECONDS)  # also for the first points of its history
            page.get_by_text("not judged yet").first.wait_for(state="detached")
            page.screenshot(path=str(HERE / f"status-{scheme}.png"))
            page.close()
        browser.close()


def main() -> None:
    machines = [word for machine in MACHINES for word in ("--machine", machine)]
    start = [sys.executable, "-u", "-m", "simulation", "up", *machines]
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as cluster:
        assert cluster.stdout is not None
        said = ""
        for line in cluster.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        try:
            patterns = (r"API server at (\S+)", r"status page, .*?: (\S+)")
            server, page = (re.search(pattern, said)[1] for pattern in patterns)  # type: ignore[index]
            record(server)
            use(Path(re.search(r"Logs of the programs are in (\S+)\.", said)[1]))  # type: ignore[index]
            if CHROMIUM:
                photograph(page)
            else:
                print("LEFT OUT: photographs of the status page, for there is no Chromium", file=sys.stderr)
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.communicate()


if __name__ == "__main__":
    main()
