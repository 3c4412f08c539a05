"""The cluster as the demo sees it: pods and nodes kept current, every moment checked for over-booking."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_REGISTER
from proto.annotations.node_register import decode_register
from proto.devices import Device
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import NODES, PODS, Node, Object, ObjectMeta, Pod, Resource
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, Replaced, reflect
from simulation.verification import capacity_violations, total_load

T = TypeVar("T", bound=Object)


class ClusterView:
    """Pods and nodes by name; `overbooked` gathers a sentence for every moment a GPU was over its capacity."""

    def __init__(self, api: ApiServer, *, checks: bool = True) -> None:
        """Without `checks` it only follows: `overbooked` stays empty."""
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.overbooked: dict[str, None] = {}
        self._devices: dict[str, Device] = {}
        self._api = api
        self._checks = checks
        self._changed = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._loops = [
            asyncio.create_task(self._follow(PODS, self.pods)),
            asyncio.create_task(self._follow(NODES, self.nodes)),
        ]

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def wait_until(
        self, condition: Callable[[], bool], check: Callable[[], None], timeout_seconds: float
    ) -> bool:
        """Returns False when the time is over first. `check` is called every quarter of a second and may raise."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not condition():
                    check()
                    await self._next_change(0.25)
        except TimeoutError:
            return False
        return True

    async def wait_for_quiet(self, quiet_seconds: float, timeout_seconds: float) -> bool:
        """Waits until nothing has changed for that long; returns False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while await self._next_change(quiet_seconds):
                    pass
        except TimeoutError:
            return False
        return True

    async def _next_change(self, at_most_seconds: float) -> bool:
        self._changed.clear()
        try:
            # asyncio.wait_for of Python 3.11 loses the end of a caller's time that comes together with a change.
            async with asyncio.timeout(at_most_seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def _follow(self, resource: Resource[T], known: dict[str, T]) -> None:
        async for change in reflect(self._api, resource):
            match change:
                case Replaced(objects=objects):
                    known.clear()
                    known.update({_name(one): one for one in objects})
                case ObjectApplied(object=one):
                    known[_name(one)] = one
                case ObjectRemoved(object=one):
                    known.pop(_name(one), None)
                case Interrupted():
                    continue
            if self._checks:
                self._check_capacity()
            self._changed.set()

    def _check_capacity(self) -> None:
        for node in self.nodes.values():
            try:
                devices = decode_register(node.metadata.annotations.get(NODE_REGISTER, "[]"))
            except AnnotationError:
                continue
            self._devices.update({device.uuid: device for device in devices})
        for problem in capacity_violations(total_load(self.pods.values()), self._devices):
            self.overbooked[problem] = None


def _name(one: Object) -> str:
    metadata = getattr(one, "metadata", None)
    return metadata.name if isinstance(metadata, ObjectMeta) else ""
