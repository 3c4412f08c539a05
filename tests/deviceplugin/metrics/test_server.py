import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.metrics.server import (
    FRESH_SECONDS,
    MetricsAddressUnusable,
    MetricsServer,
    Samples,
    UseWatch,
)
from deviceplugin.metrics.view import DaemonView, Readiness, readiness
from deviceplugin.own_threads import OwnThreads
from deviceplugin.usage.telemetry import NodeTelemetry
from deviceplugin.usage.used import NodeSample
from program.address import ListenAddress
from proto.daemon_usage import ContainerUse, GpuUse, NodeUse, decode_node_use
from tests.deviceplugin.metrics_view import NOW, A, busy_metrics, sample, view


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def samples_of(take: Callable[[], NodeSample], clock: Clock | None = None) -> Samples[NodeSample]:
    return Samples(partial(OwnThreads("nvml").call, take), busy_metrics(), monotonic=clock or Clock())


def use_watch(clock: Clock | None = None) -> UseWatch:
    return UseWatch(view=view, monotonic=clock or Clock(), now=lambda: NOW)


def telemetry_of(take: Callable[[], NodeTelemetry] = NodeTelemetry) -> Samples[NodeTelemetry]:
    return Samples(partial(OwnThreads("nvml").call, take), busy_metrics(), monotonic=Clock(), reading="telemetry")


@asynccontextmanager
async def serving(take: Callable[[], NodeSample] = sample, seen: DaemonView | None = None) -> AsyncIterator[str]:
    server = MetricsServer(
        ListenAddress(host="127.0.0.1", port=0),
        busy_metrics(),
        samples_of(take),
        telemetry_of(),
        lambda: seen or view(),
        use=use_watch(),
        monotonic=Clock(),
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run())
        await server.listening.wait()
        yield f"http://127.0.0.1:{server.port}"
        task.cancel()


async def get(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_a_scrape_over_http_answers_the_page_prometheus_reads() -> None:
    async with serving() as url:
        status, content_type, text = await get(f"{url}/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"hami_vgpu_memory_used_bytes", "topogpu_kubelet_registered", "process_resident_memory_bytes"} <= names


async def test_the_use_of_the_gpus_is_served_to_the_status_page() -> None:
    async with serving() as url:
        status, content_type, text = await get(f"{url}/usage")
    assert (status, content_type) == (200, "application/json")
    used = ContainerUse(pod="ml/train", container="main", gpu=A, memory=400, busy=60, unused=0)
    assert decode_node_use(text.encode(), "node-1") == NodeUse(
        node="node-1", gpus={A: GpuUse(memory=512, busy=80)}, containers=(used,)
    )


async def test_every_sample_is_seen_once_by_who_follows_the_use() -> None:
    clock, seen = Clock(), list[NodeSample]()
    samples = Samples(partial(OwnThreads("nvml").call, sample), busy_metrics(), monotonic=clock, took=seen.append)
    for _ in range(2):
        await samples.current()
    clock.now += FRESH_SECONDS
    await samples.current()
    assert seen == [sample(), sample()]


async def test_probes_answer_with_a_sentence() -> None:
    async with serving() as url:
        assert (await get(f"{url}/healthz"))[::2] == (200, "ok\n")
        assert (await get(f"{url}/readyz"))[::2] == (200, "2 GPUs, 1 of them healthy\n")
    async with serving(seen=replace(view(), registered=False)) as url:
        assert (await get(f"{url}/readyz"))[::2] == (503, "kubelet has not accepted the registration yet\n")


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        (replace(view(), pods_known=False), Readiness(False, "the pods of node node-1 are not known yet")),
        (
            replace(view(), devices=(), registered=False, gpus_known=False),
            Readiness(False, "the NVIDIA driver has not answered yet"),
        ),
        (
            replace(view(), mode_known=False, registered=False),
            Readiness(False, "it is not chosen yet how node node-1 allocates, by slots or immediately"),
        ),
        (replace(view(), devices=(), registered=False), Readiness(True, "this node has no GPU to share")),
        (replace(view(), devices=(), gpu_problem="no driver"), Readiness(True, "no driver")),
    ],
)
def test_readiness_is_being_able_to_serve(seen: DaemonView, answer: Readiness) -> None:
    assert readiness(seen) == answer


async def test_the_driver_is_asked_once_a_second_however_many_scrape() -> None:
    clock, asked = Clock(), 0

    def take() -> NodeSample:
        nonlocal asked
        asked += 1
        return sample()

    samples = samples_of(take, clock)
    await asyncio.gather(*(samples.current() for _ in range(5)))
    await samples.current()
    assert asked == 1
    clock.now += FRESH_SECONDS
    assert await samples.current() == (sample(), 0.0)
    assert asked == 2


async def test_while_the_driver_hangs_the_last_sample_is_served_with_its_age() -> None:
    clock = Clock()
    answers: list[asyncio.Future[NodeSample]] = []

    async def take() -> NodeSample:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    samples = Samples(take, busy_metrics(), monotonic=clock)
    assert await samples.current(wait_seconds=0.01) == (None, None)
    answers[0].set_result(sample())
    assert await samples.current() == (sample(), 0.0)
    clock.now = 60.0
    assert await samples.current(wait_seconds=0.01) == (sample(), 60.0)
    assert await samples.current(wait_seconds=0.01) == (sample(), 60.0)
    assert len(answers) == 2
    await samples.close()


async def test_a_reading_that_fails_leaves_the_last_one_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def take() -> NodeSample:
        raise OSError("no such folder")

    samples = samples_of(take)
    for _ in range(3):
        assert await samples.current() == (None, None)
    assert caplog.text.count("the GPUs' usage could not be read: no such folder") == 1


async def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ListenAddress(host="127.0.0.1", port=taken.getsockname()[1])
        server = MetricsServer(
            address, busy_metrics(), samples_of(sample), telemetry_of(), view, use=use_watch(), monotonic=Clock()
        )
        with pytest.raises(MetricsAddressUnusable) as refusal:
            await server.run()
    assert str(refusal.value) == f"cannot serve metrics on {address}: address already in use; choose another address"
