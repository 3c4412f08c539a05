"""Leads a cluster to a step, lets a fault happen exactly there, and waits until everything is as it should be."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from proto.annotations.node_allocation import AllocationMode
from simulation.hami_core import install_placeholder
from simulation.kubelet.container import CdiError
from simulation.kubelet.device_manager import PreStartRefused
from tests.faults.facts import Usage, leaked, undrained, unsettled, usage, wrong
from tests.faults.faults import Fault
from tests.faults.steps import DAEMON, EARLY, EXTENDER, UNINSTALL, Step
from tests.faults.world import GPU_MIB, UUIDS, World, world

LONGEST_SECONDS = 150.0
_STANDING, _PASSING, _PROBE = "standing", "passing", "probe"
_RIVALS = ("rival-1", "rival-2", "rival-3")
_SHAPES = {
    _STANDING: (1, GPU_MIB),
    _PASSING: (2, GPU_MIB * 6 // 10),
    _PROBE: (len(UUIDS), GPU_MIB),
    **dict.fromkeys(_RIVALS, (1, GPU_MIB * 6 // 10)),
}
"""GPUs and MiB of each. No two of them fit on one GPU, and not all of them on the node."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds` from the end of the fault; `refused` pods were created again, because kubelet refused them for good."""

    seconds: float
    refused: int


class Story:
    """What happens in one cell."""

    def __init__(self, it: World) -> None:
        self._it = it
        self.refused = 0

    async def prepare(self, step: Step) -> None:
        """To the moment before the step."""
        if step in EARLY:
            return
        await self._start()
        if step is Step.UNINSTALL:
            await self._live(_STANDING)
            await self._drain()
            await self._it.stop(DAEMON)
            return
        await self._live(_STANDING)
        if step in (Step.RESTART, Step.POD_END):
            await self._live(_PASSING)

    async def lead(self, step: Step) -> None:
        """Past the step, whatever happens there."""
        match step:
            case Step.START | Step.REGISTER | Step.REPORT:
                await self._start()
                self._create(_STANDING, _PASSING)
            case Step.RESTART:
                await self._restart_container()
            case Step.POD_END:
                await self._it.delete(_PASSING)
            case Step.UNINSTALL:
                await self._uninstall()
                await self._it.start(DAEMON)
                self._create(_STANDING, _PASSING)
            case _:
                self._create(_PASSING)

    def rivals(self) -> None:
        """Pods for which there is no room beside those before, but for one."""
        self._create(*_RIVALS)

    async def settle(self) -> None:
        await self._until(unsettled)

    async def fill(self) -> None:
        """When no pod is left, one that needs all of every GPU finds room."""
        await self._drain()
        await self._live(_PROBE)

    async def empty(self, usual: Mapping[str, Usage]) -> None:
        await self._until(partial(leaked, usual=usual))
        await self._drain()

    async def _drain(self) -> None:
        for pod in self._it.pods():
            await self._it.delete(pod["metadata"]["name"])
        await self._until(undrained)

    async def _start(self) -> None:
        await asyncio.gather(self._it.start(DAEMON), self._it.start(EXTENDER))

    def _create(self, *names: str) -> None:
        for name in names:
            self._it.create(name, *_SHAPES[name])

    async def _live(self, name: str) -> None:
        self._create(name)
        await self._until(unsettled)

    async def _until(self, problems: Callable[[World], Awaitable[list[str]]]) -> None:
        """Meanwhile a controller creates pods again that kubelet refused. Raises AssertionError."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while found := await problems(self._it):
            bad = wrong(self._it)
            assert not bad, "\n".join(bad)
            assert time.monotonic() < deadline, "\n".join(found)
            await self._replace_refused()
            await asyncio.sleep(0.05)

    async def _replace_refused(self) -> None:
        for pod in self._it.pods():
            if pod["status"].get("phase") == "Failed":
                self.refused += 1
                name = pod["metadata"]["name"]
                self._it.server.delete("pods", name, namespace="default")
                self._create(name)

    async def _restart_container(self) -> None:
        """Kubelet tries it again and again."""
        pod = self._it.server.store.get("pods", "default", _PASSING)
        assert pod is not None
        while True:
            with suppress(PreStartRefused, CdiError):
                await self._it.kubelet.restart_container(pod["metadata"]["uid"], "main")
                return
            await asyncio.sleep(0.2)

    async def _uninstall(self) -> None:
        """Again and again, until it says that nothing is left."""
        while await self._it.run(UNINSTALL):  # noqa: ASYNC110 - it is another process each time
            await asyncio.sleep(0.2)
        left = [str(path) for folder in ("cdi", "hook") for path in (self._it.disk / folder).iterdir()]
        assert [*left, *self._it.node["metadata"].get("annotations", {})] == []
        install_placeholder(self._it.disk / "hook")


async def undergo(fault: Fault, step: Step, allocation: AllocationMode = AllocationMode.SLOTS) -> Outcome:
    """Raises AssertionError with what is not as it should be."""
    usual = await _usual()
    async with world(fault.needs) as it:
        it.allocation = allocation
        story = Story(it)
        await story.prepare(step)
        it.moment.arm(step, fault.program)
        leading = asyncio.create_task(story.lead(step))
        async with asyncio.timeout(60):
            await it.moment.reached()
        await fault.begin(it)
        it.moment.go_on()
        story.rivals()
        await asyncio.sleep(fault.seconds)
        over = time.monotonic()
        await fault.end(it)
        async with asyncio.timeout(LONGEST_SECONDS):
            await leading
        await story.settle()
        seconds = time.monotonic() - over
        await story.fill()
        await story.empty(usual)
        assert fault.refuses or not story.refused, f"kubelet refused {story.refused} pods"
        return Outcome(round(seconds, 1), story.refused)


_known: dict[str, Usage] = {}


async def _usual() -> dict[str, Usage]:
    """What each program has open at the end of a cell without a fault; found once in each process of the tests."""
    if not _known:
        async with world(frozenset()) as it:
            story = Story(it)
            await story.prepare(Step.RESTART)
            await story.fill()
            _known.update({program: await usage(it, program) for program in it.programs})
    return _known
