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

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
MACHINES = ("hgxh100-8x-h100-80g", "4x-a100-pcie-80g-bridged")
PODS = ("topology-aware", "fraction", "several-containers", "percentage")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
LONGEST_SECONDS = 60.0


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def create(server: str, pod: Any) -> None:
    request = urllib.request.Request(
        f"{server}/api/v1/namespaces/default/pods", json.dumps(pod).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()


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
    for number, pod in enumerate([*pods, large], start=1):
        create(server, pod)
        wait(lambda number=number: settled(server) == number, pod["metadata"]["name"])  # type: ignore[misc]
    items = []
    for kind, path in (("Node", "nodes"), ("Pod", "pods"), ("ResourceQuota", "resourcequotas")):
        found = get(f"{server}/api/v1/{path}")["items"]
        items += [{"apiVersion": "v1", "kind": kind, **item} for item in found]
    state = {"apiVersion": "v1", "kind": "List", "items": items}
    (HERE / "state.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def settled(server: str) -> int:
    """Pods that run, or that kube-scheduler has refused."""
    pods = get(f"{server}/api/v1/pods")["items"]
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
            page = browser.new_page(viewport={"width": 1280, "height": 960}, color_scheme=scheme)
            page.goto(address)
            page.get_by_text("Live").first.wait_for()
            page.get_by_text("default/large").first.wait_for()
            page.wait_for_timeout(5000)  # for the first points of its history
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
            if CHROMIUM:
                photograph(page)
            else:
                print("LEFT OUT: photographs of the status page, for there is no Chromium", file=sys.stderr)
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.communicate()


if __name__ == "__main__":
    main()
