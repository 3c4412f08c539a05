import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from deviceplugin.records.holdings import ListedContainer
from deviceplugin.records.pod_resources import PodResources, PodResourcesUnavailable
from proto.podresources import podresources_v1_pb2 as pb
from proto.podresources import podresources_v1_pb2_grpc as rpc
from tests.deviceplugin.registration import kubelet_root
from tests.polling import until

GPU = "nvidia.com/gpu"
Answer = Callable[[], list[pb.PodResources]]


class Lister(rpc.PodResourcesListerServicer):
    """Answers when `gate` is open."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def List(self, request: pb.ListPodResourcesRequest, context: object) -> pb.ListPodResourcesResponse:  # noqa: N802
        self.calls += 1
        answer = pb.ListPodResourcesResponse(pod_resources=self.answer())
        await self.gate.wait()
        return answer


@asynccontextmanager
async def lister(socket: str, answer: Answer) -> AsyncIterator[Lister]:
    served, server = Lister(answer), grpc.aio.server()  # type: ignore[abstract]  # only List is called
    rpc.add_PodResourcesListerServicer_to_server(served, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield served
    finally:
        await server.stop(None)


def container(name: str, *entries: pb.ContainerDevices) -> pb.ContainerResources:
    return pb.ContainerResources(name=name, devices=entries)


def entry(*ids: str, resource: str = GPU) -> pb.ContainerDevices:
    return pb.ContainerDevices(resource_name=resource, device_ids=ids)


def pod(name: str, *containers: pb.ContainerResources) -> pb.PodResources:
    return pb.PodResources(name=name, namespace="default", containers=containers)


async def test_a_containers_ids_are_those_of_all_its_entries_of_our_resource() -> None:
    pods = [
        pod("p", container("c0", entry("a"), entry("n", resource="x/nic"), entry("b")), container("c1")),
        pod("q", container("c0", entry("c"))),
    ]
    async with kubelet_root() as root, lister(f"{root}/s.sock", lambda: pods):
        assert await PodResources(f"{root}/s.sock", GPU).listed() == (
            ListedContainer(namespace="default", pod="p", container="c0", ids=frozenset({"a", "b"})),
            ListedContainer(namespace="default", pod="q", container="c0", ids=frozenset({"c"})),
        )


async def test_a_burst_of_calls_is_two_questions_and_nobody_gets_an_older_answer() -> None:
    held: list[str] = ["old"]
    async with (
        kubelet_root() as root,
        lister(f"{root}/s.sock", lambda: [pod("p", container("c", entry(*held)))]) as kubelet,
    ):
        resources = PodResources(f"{root}/s.sock", GPU)
        kubelet.gate.clear()
        first = asyncio.create_task(resources.listed())
        await until(lambda: kubelet.calls > 0)
        held[:] = ["new"]
        rest = [asyncio.create_task(resources.listed()) for _ in range(50)]
        await asyncio.sleep(0)
        kubelet.gate.set()
        assert [one.ids for one in await first] == [{"old"}]
        assert {frozenset(one.ids for one in answer) for answer in await asyncio.gather(*rest)} == {
            frozenset({frozenset({"new"})})
        }
        assert kubelet.calls == 2


async def test_calls_that_come_soon_after_an_answer_share_one_question_too() -> None:
    async with kubelet_root() as root, lister(f"{root}/s.sock", list) as kubelet:
        resources = PodResources(f"{root}/s.sock", GPU, pause_seconds=0.5)
        await resources.listed()
        calls = []
        for _ in range(50):
            # As news come while containers start.
            calls.append(asyncio.create_task(resources.listed()))
            await asyncio.sleep(0)
        await asyncio.gather(*calls)
        assert kubelet.calls == 2


async def test_a_missing_socket_is_a_sentence_and_a_returning_kubelet_is_asked_at_once() -> None:
    async with kubelet_root() as root:
        resources = PodResources(f"{root}/s.sock", GPU)
        with pytest.raises(PodResourcesUnavailable, match=r"s\.sock"):
            await resources.listed()
        assert f"{root}/s.sock" in await resources.problem()
        async with lister(f"{root}/s.sock", list):
            assert await resources.listed() == ()
            assert await resources.problem() == ""


async def test_a_kubelet_that_hangs_is_given_up() -> None:
    async with kubelet_root() as root, lister(f"{root}/s.sock", list) as kubelet:
        kubelet.gate.clear()
        resources = PodResources(f"{root}/s.sock", GPU, deadline_seconds=0.05)
        with pytest.raises(PodResourcesUnavailable, match="Deadline Exceeded"):
            await resources.listed()
        kubelet.gate.set()
        await until(lambda: answers(resources))


async def answers(resources: PodResources) -> bool:
    return not await resources.problem()


async def test_one_caller_that_gives_up_takes_the_answer_from_nobody_else() -> None:
    async with kubelet_root() as root, lister(f"{root}/s.sock", list) as kubelet:
        resources = PodResources(f"{root}/s.sock", GPU)
        kubelet.gate.clear()
        impatient, patient = (asyncio.create_task(resources.listed()) for _ in range(2))
        await until(lambda: kubelet.calls > 0)
        impatient.cancel()
        kubelet.gate.set()
        assert await patient == ()
