"""Who really uses the GPUs: what is read of the daemons, and what of it is sent to the page."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proto.daemon_usage import LARGEST_USAGE_BYTES, ContainerUse, GpuUse, NodeUse, encode_node_use
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer
from scheduler_ext.status.board import Board
from scheduler_ext.status.shown_use import IN_USE_SECONDS, ShownUse, is_news, shown_use
from scheduler_ext.status.use_reader import UseReader
from scheduler_ext.status.view import Poll, Uses
from simulation.apiserver import EmbeddedApiServer
from simulation.apiserver.faults import Fault
from tests.scheduler_ext.status.shown import looked, node
from tests.scheduler_ext.status.test_board import Reader

A = DeviceUUID("GPU-a")
SYSTEM, ADDRESS = "topogpu-system", {"podIP": "127.0.0.1"}
AT = 1_800_000_000.0


def use(name: str = "n", *, busy: int | None = 40, unused: int | None = 0, gpu: DeviceUUID = A) -> NodeUse:
    row = ContainerUse(pod="ml/train", container="main", gpu=gpu, memory=4000, busy=busy, unused=unused)
    return NodeUse(node=name, gpus={gpu: GpuUse(memory=5000, busy=busy)}, containers=(row,))


def shown(**facts: Any) -> ShownUse:
    return shown_use(use(**facts), {A: 3}, AT)


def test_a_daemon_is_believed_about_the_gpus_of_its_node_alone() -> None:
    assert shown(unused=7200) == ShownUse(
        gpus={3: (5000, 40)}, containers=(("ml/train", "main", 3, 4000, 40, round(AT) - 7200),)
    )
    assert shown_use(use(gpu=DeviceUUID("GPU-other")), {A: 3}, AT) == ShownUse(gpus={}, containers=())


def test_a_container_that_computed_a_moment_ago_uses_its_gpu_and_of_one_that_shows_nothing_it_is_unknown() -> None:
    since = [shown(unused=seconds).containers[0][5] for seconds in (0, int(IN_USE_SECONDS) - 1, None)]
    assert since == [0, 0, None]


@pytest.mark.parametrize(
    ("after", "news"),
    [
        ({"busy": 43}, False),
        ({"busy": 46}, True),
        ({"busy": None}, True),
        ({"unused": 200}, False),
        ({"unused": 4000}, True),
    ],
)
def test_only_what_differs_notably_is_news(after: dict[str, Any], news: bool) -> None:
    assert is_news(shown(), shown(**after)) is news


def test_small_steps_add_up_to_news() -> None:
    board, reader, sent = Board("p"), Reader(), list[Any]()
    own = next(iter(looked(node("n"))["n"].usage.gpus)).device.uuid
    for number, busy in enumerate((40, 42, 44, 46)):
        nodes = {} if number else looked(node("n"))
        uses = Uses(nodes={"n": use(busy=busy, gpu=own)})
        board.apply(Poll(monotonic=number, at=AT + number, nodes=nodes, uses=uses))
        sent += [value["use"] for value in reader.catch_up(board) if "use" in value]
    assert [each["n"]["gpus"] for each in sent] == [{"0": [5000, 40]}, {"0": [5000, 46]}]


def test_a_use_that_is_no_longer_known_is_taken_back_and_goes_with_its_node() -> None:
    board, own = Board("p"), next(iter(looked(node("n"))["n"].usage.gpus)).device.uuid
    known = Poll(monotonic=0, at=AT, nodes=looked(node("n")), uses=Uses(nodes={"n": use(gpu=own)}))
    board.apply(known)
    late = Reader()
    late.catch_up(board)
    board.apply(Poll(monotonic=1, at=AT + 1, uses=Uses(problem="n: the daemon does not answer")))
    (value,) = [each for each in late.catch_up(board) if "use" in each]
    assert value["use"] == {"n": None}
    assert late.head["use_problem"] == "n: the daemon does not answer"
    board.apply(replace(known, monotonic=2, nodes={}))
    board.apply(replace(known, monotonic=3, nodes={}, gone=("n",)))
    assert not any("use" in value for value in Reader().catch_up(board))


@asynccontextmanager
async def daemon(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[TestServer]:
    async def handle(request: web.Request) -> web.Response:
        return answer(request)

    application = web.Application()
    application.router.add_get("/usage", handle)
    server = TestServer(application, host="127.0.0.1")
    async with server:
        yield server


def daemon_pod(
    name: str, on: str, port: int | None, *, namespace: str = SYSTEM, ip: str = "127.0.0.1"
) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "device-plugin"}
    container = {"name": "d", "image": "i", "ports": [{"name": "metrics", "containerPort": port or 1}]}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": on, "containers": [container]},
    }


async def read(*pods: dict[str, Any], fault: Fault | None = None) -> Uses:
    async with EmbeddedApiServer() as server:
        for pod in pods:
            server.create(pod)
            at = pod["metadata"]
            server.patch("pods", at["name"], {"status": ADDRESS}, namespace=at["namespace"], subresource="status")
        if fault is not None:
            server.inject(fault)
        with NamedTemporaryFile("w") as kubeconfig:
            kubeconfig.write(server.kubeconfig())
            kubeconfig.flush()
            api = await ApiServer.connect(kubeconfig.name, timeout_seconds=5)
        try:
            reader = UseReader(
                api=api, namespace=SYSTEM, watched=lambda: True, monotonic=lambda: 0.0, pause_seconds=0.0
            )
            await reader.round()
            return reader.uses()
        finally:
            await api.close()


async def test_each_daemon_of_the_own_namespace_is_read() -> None:
    async with daemon(lambda _: web.Response(body=encode_node_use(use()))) as one:
        foreign = daemon_pod("false", "m", one.port, namespace="ml")
        assert await read(daemon_pod("d", "n", one.port), foreign) == Uses(nodes={"n": use()})


async def test_a_node_with_two_daemons_or_the_daemon_of_another_node_is_not_believed() -> None:
    async with daemon(lambda _: web.Response(body=encode_node_use(use()))) as one:
        found = await read(daemon_pod("d", "n", one.port), daemon_pod("e", "n", one.port))
        assert found.nodes == {}
        assert "1 of 1 daemons are not read; n: it has not exactly one pod of the daemon" in found.problem
        found = await read(daemon_pod("d", "m", one.port))
        assert (found.nodes, found.problem.endswith("the daemon there is another node's")) == ({}, True)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: web.Response(status=404), "the daemon answers 404; is it of an older release?"),
        (lambda: web.Response(status=302, headers={"Location": "/other"}), "the daemon answers 302"),
        (lambda: web.Response(text="no"), "the answer is not the use of GPUs"),
        (lambda: web.Response(body=b" " * (LARGEST_USAGE_BYTES + 1)), "the daemon's answer has more than 256 KiB"),
    ],
)
async def test_a_daemon_that_answers_otherwise_is_named_with_the_reason(
    answer: Callable[[], web.Response], problem: str
) -> None:
    async with daemon(lambda _: answer()) as one:
        found = await read(daemon_pod("d", "n", one.port))
    assert found.nodes == {}
    assert problem in found.problem


async def test_daemons_that_cannot_be_listed_or_are_not_there_are_a_problem_in_words() -> None:
    assert (await read()).problem == f"namespace {SYSTEM} has no pod of a node daemon"
    refused = await read(fault=Fault(verbs=frozenset({"list"}), resources=frozenset({"pods"}), status=403))
    assert refused.problem.startswith("the pods of the daemons cannot be listed: ")


def test_a_field_of_a_later_release_is_left_out() -> None:
    later = {**json.loads(encode_node_use(use())), "later": 1}
    assert msgspec.json.decode(json.dumps(later), type=NodeUse) == use()
