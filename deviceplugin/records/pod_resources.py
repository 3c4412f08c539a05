"""Reads from kubelet's pod-resources socket the ids that each container of each pod holds, and CPUs (edge)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from deviceplugin.records.holdings import ExclusiveCpus, ListedContainer
from program.tasks import Shared
from proto.podresources import podresources_v1_pb2 as pb
from proto.podresources import podresources_v1_pb2_grpc as rpc

_PAUSE_SECONDS = 0.05
"""Seconds between two requests: kubelet answers 100 requests a second for all callers together."""
_LONGEST_ANSWER_BYTES = 16 * 1024 * 1024
"""The limit of kubelet's own clients."""


class PodResourcesUnavailable(Exception):
    """The socket does not answer; the text is the reason."""


class PodResources:
    """Calls during or soon after a List share the next one: no answer is older than its request."""

    def __init__(
        self,
        socket: str,
        resource: str,
        *,
        deadline_seconds: float = 2.0,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self._socket = socket
        self._resource = resource
        self._deadline_seconds = deadline_seconds
        self._asked_at = float("-inf")
        self._answer = Shared(self._list, lambda: self._asked_at + pause_seconds - _now())

    async def listed(self) -> tuple[ListedContainer, ...]:
        """Returns all containers that hold ids of our resource. Raises PodResourcesUnavailable."""
        return await self._answer.result()

    async def problem(self) -> str:
        """Returns why kubelet does not answer; empty if it does."""
        try:
            await self.listed()
        except PodResourcesUnavailable as error:
            return str(error)
        return ""

    async def end(self) -> None:
        await self._answer.end()

    async def _list(self) -> tuple[ListedContainer, ...]:
        self._asked_at = _now()
        async with self._lister() as stub:
            answer = await stub.List(pb.ListPodResourcesRequest(), timeout=self._deadline_seconds)
        return holdings(answer, self._resource)

    async def cpus(self) -> ExclusiveCpus:
        """Returns the CPUs that kubelet gives to single containers. Raises PodResourcesUnavailable."""
        async with self._lister() as stub:
            offered = await stub.GetAllocatableResources(
                pb.AllocatableResourcesRequest(), timeout=self._deadline_seconds
            )
            answer = await stub.List(pb.ListPodResourcesRequest(), timeout=self._deadline_seconds)
        return exclusive_cpus(offered, answer, self._resource)

    @asynccontextmanager
    async def _lister(self) -> AsyncIterator["rpc.PodResourcesListerAsyncStub"]:
        # A new channel: a lasting one would wait for gRPC's back-off after kubelet's restart.
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", _LONGEST_ANSWER_BYTES),
        ]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            try:
                yield rpc.PodResourcesListerStub(channel)
            except grpc.aio.AioRpcError as error:
                raise PodResourcesUnavailable(f"{self._socket}: {error.details()}") from error


def holdings(answer: pb.ListPodResourcesResponse, resource: str) -> tuple[ListedContainer, ...]:
    """Returns each container with its ids, which kubelet spreads over several entries: each device has its own."""
    listed = (
        ListedContainer(
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            ids=frozenset(
                identifier
                for entry in container.devices
                if entry.resource_name == resource
                for identifier in entry.device_ids
            ),
        )
        for pod in answer.pod_resources
        for container in pod.containers
    )
    return tuple(one for one in listed if one.ids)


def exclusive_cpus(
    offered: pb.AllocatableResourcesResponse, answer: pb.ListPodResourcesResponse, resource: str
) -> ExclusiveCpus:
    """Returns the CPUs of both answers, apart for pods that hold ids of the resource."""
    of_others, without_gpus, of_ours = set[int](), set[int](), dict[tuple[str, str, str], frozenset[int]]()
    for pod in answer.pod_resources:
        bare = [each for each in pod.containers if all(entry.resource_name != resource for entry in each.devices)]
        if len(bare) < len(pod.containers):
            without_gpus.update(cpu for each in bare for cpu in each.cpu_ids)
            names = {each.name: frozenset(each.cpu_ids) for each in pod.containers if each.cpu_ids}
            of_ours |= {(pod.namespace, pod.name, name): cpus for name, cpus in names.items()}
        else:
            of_others.update(cpu for each in pod.containers for cpu in each.cpu_ids)
    return ExclusiveCpus(
        all=frozenset(offered.cpu_ids),
        of_others=frozenset(of_others),
        of_ours=of_ours,
        without_gpus=frozenset(without_gpus),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
