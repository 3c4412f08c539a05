"""The worst cases of `/filter`: every pod asks for something else, so nothing that was found out before helps.

Run it with `python -m benchmarks.shapes`. Extender, API server and client are those of `benchmarks.filter`, with the
floor of the transport in the same run; series take turns. At last 60 pods of shapes of their own wait for room while
other pods are asked about, and `/metrics` is scraped meanwhile.
"""

import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from random import Random
from statistics import median

import click
import msgspec

from benchmarks.cluster import gpu_uuid, node_name
from benchmarks.filter import PAUSE_SECONDS, client, running_extender, running_floor
from proto.annotations import keys

Container = tuple[int, int]
"""GPUs and MiB of each."""
TOPOLOGY = {keys.GPU_POLICY: "topology-aware"}
SERIES = ("floor", "one shape", "1 GPU", "4 GPUs, topology-aware", "2 containers, topology-aware", "refuses a GPU",
          "names a GPU", "fits nowhere", "2 containers, fits nowhere")  # fmt: skip
ROUNDS = 10
WAITING = 60


@click.command(context_settings={"show_default": True})
@click.option("--nodes", default="1000,5000", help="Sizes of the cluster.")
@click.option("--pods", default=4, help="Running pods on each node.")
@click.option("--requests", type=click.IntRange(min=ROUNDS), default=200, help="Of each series.")
@click.option("--different", is_flag=True, help="The GPUs of each node have another amount of memory.")
def main(*, nodes: str, pods: int, requests: int, different: bool) -> None:
    """Print a table of milliseconds over HTTP, each pod a shape of its own."""
    click.echo("| nodes | pods | p50 ms | p99 ms | p99 beside the floor's |\n| --- | --- | --- | --- | --- |")
    for size in map(int, nodes.split(",")):
        with ExitStack() as stack:
            _, url, metrics = stack.enter_context(running_extender(size, pods, different=different))
            _, floor_url = stack.enter_context(running_floor())
            _measure(size, requests, url, floor_url)
            _measure_beside(size, requests, url, metrics)


def _measure(nodes: int, requests: int, url: str, floor_url: str) -> None:
    asked = {name: bodies(name, nodes, requests) for name in SERIES}
    times: dict[str, list[float]] = {name: [] for name in SERIES}
    for _ in range(ROUNDS):
        for name, body in asked.items():
            where = floor_url if name == "floor" else url
            client(where, list(islice(body, requests // ROUNDS)), PAUSE_SECONDS, times[name])
    floor = _p99(times["floor"])
    for name in SERIES:
        _print(nodes, name, times[name], floor)


def _measure_beside(nodes: int, requests: int, url: str, metrics: str) -> None:
    """One shape: alone, while pods wait, and while pages are written."""
    alone = _one_shape(nodes, requests, url, "alone")
    client(url, list(bodies("2 containers, fits nowhere", nodes, WAITING, "waiting")), 0, [])
    waiting = _one_shape(nodes, requests, url, f"while {WAITING} shapes wait")
    pages: list[tuple[float, int]] = []
    done = threading.Event()
    scraping = threading.Thread(target=_scrape, args=(metrics, pages, done))
    scraping.start()
    scraped = _one_shape(nodes, requests, url, "while /metrics is scraped")
    done.set()
    scraping.join()
    for name, times in (("alone", alone), (f"while {WAITING} shapes wait", waiting), ("while /metrics is", scraped)):
        _print(nodes, f"one shape, 20 ms apart, {name}", times, _p99(alone))
    seconds, size = (max(each) for each in zip(*pages, strict=True))
    click.echo(f"| {nodes} | /metrics, {size / 1e6:.1f} MB, longest of {len(pages)} | {seconds * 1e3:.0f} | | |")


def _one_shape(nodes: int, requests: int, url: str, mark: str) -> list[float]:
    times: list[float] = []
    client(url, list(bodies("one shape", nodes, requests, mark)), 0.02, times)
    return times


def _scrape(url: str, pages: list[tuple[float, int]], done: threading.Event) -> None:
    while not done.is_set() or not pages:
        began = time.perf_counter()
        with urllib.request.urlopen(f"{url}/metrics") as page:
            size = len(page.read())
        pages.append((time.perf_counter() - began, size))


def bodies(name: str, nodes: int, requests: int, mark: str = "") -> Iterator[bytes]:
    rng = Random(0)
    names = [node_name(number) for number in range(nodes)]
    for number in range(requests):
        rng.shuffle(names)
        containers, annotations = _asked(name, number, nodes)
        pod = _pod(f"pod-{name}-{mark}-{number}".replace(" ", "-"), containers, annotations)
        yield msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})


def _asked(name: str, number: int, nodes: int) -> tuple[Sequence[Container], Mapping[str, str]]:
    gpu, mib = gpu_uuid(number * 7 % nodes, 1), 1100 + number
    asked: Mapping[str, tuple[Sequence[Container], Mapping[str, str]]] = {
        "1 GPU": ([(1, mib)], {}),
        "4 GPUs, topology-aware": ([(4, mib)], TOPOLOGY),
        "2 containers, topology-aware": ([(4, mib), (2, 500)], TOPOLOGY),
        "refuses a GPU": ([(1, 1025)], {keys.NO_USE_GPU_UUID: gpu}),
        "names a GPU": ([(1, 1025)], {keys.USE_GPU_UUID: gpu}),
        "fits nowhere": ([(1, 100_000 + number)], {}),
        "2 containers, fits nowhere": ([(4, mib), (8, 90_000)], TOPOLOGY),
    }
    return asked.get(name, ([(1, 1024)], {}))


def _pod(name: str, containers: Sequence[Container], annotations: Mapping[str, str]) -> dict[str, object]:
    asking = [
        {"name": f"c{n}", "resources": {"limits": {keys.RESOURCE_COUNT: str(gpus), keys.RESOURCE_MEMORY: str(mib)}}}
        for n, (gpus, mib) in enumerate(containers)
    ]
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": asking}, "status": {"phase": "Pending"}}


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def _print(nodes: int, name: str, times: Sequence[float], beside: float) -> None:
    p99 = _p99(times)
    click.echo(f"| {nodes} | {name} | {median(times):.1f} | {p99:.1f} | {p99 / beside:.1f} |")


if __name__ == "__main__":
    main()
