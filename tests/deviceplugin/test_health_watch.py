"""The watching loop over a scripted driver: what is asked when, and who is told."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pynvml
import pytest

from deviceplugin.health.step import HealthEvent, HealthSettings, Monitored, XidSeen
from deviceplugin.health_watch import HealthWatch
from deviceplugin.nvml.calls import NvmlCalls
from deviceplugin.nvml.library import NvmlUnavailable
from proto.devices import DeviceUUID
from simulation.machines import gpu_uuid, load
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, Fault, RowsRemapped, lost_gpu, write_machine_file
from tests.deviceplugin.gpus import A, B

BOTH = frozenset({A, B})
NEVER = 3600.0
FALLEN = "the driver reported XID 79 (GPU has fallen off the bus)"
LOST = "it does not answer: GPU is lost"

T = TypeVar("T")


class Driver(ModuleType):
    """In the place of nvidia-ml-py: GPUs with no signal at all, or lost."""

    c_nvmlGpuFabricInfo_v3_t = pynvml.c_nvmlGpuFabricInfo_v3_t  # noqa: N815 - NVML's name

    class NVMLError(Exception):
        value = 15

        def __str__(self) -> str:
            return "GPU is lost"

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.lost: set[str] = set()

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802 - NVML's name
        if uuid in self.lost:
            raise self.NVMLError
        return uuid


@dataclass
class Thread:
    """The owner thread, and the events thread beside it."""

    driver: Driver = field(default_factory=Driver)
    available: bool = True
    polls: int = 0
    polled: asyncio.Event = field(default_factory=asyncio.Event)
    watched: list[frozenset[DeviceUUID]] = field(default_factory=list)
    stopped: bool = False
    tell: Callable[[HealthEvent], object] = print

    def __post_init__(self) -> None:
        self.calls = NvmlCalls(self.driver)

    async def call(self, function: Callable[[], T]) -> T:
        self.polls += 1
        self.polled.set()
        return function()

    def open(self) -> NvmlCalls:
        if not self.available:
            raise NvmlUnavailable("the NVIDIA driver is not loaded on this machine")
        return self.calls

    def start(self, tell: Callable[[HealthEvent], object]) -> None:
        self.tell = tell

    def watch(self, calls: NvmlCalls, gpus: frozenset[DeviceUUID]) -> None:
        self.watched.append(gpus)

    def stop(self) -> None:
        self.stopped = True

    async def next_poll(self) -> None:
        """A poll that begins from now on, and its consequences."""
        self.polled.clear()
        async with asyncio.timeout(30):
            await self.polled.wait()
        await asyncio.sleep(0)


@dataclass
class Running:
    watch: HealthWatch
    thread: Thread
    clock: list[float]
    changes: list[dict[DeviceUUID, str]]
    counted: list[str]

    async def changed(self, count: int) -> None:
        """Until `problems` has changed so often."""
        async with asyncio.timeout(30):
            while len(self.changes) < count:  # noqa: ASYNC110 - nothing else to wait for
                await asyncio.sleep(0.001)

    async def lost_and_back(self, gpu: DeviceUUID) -> None:
        """Until the GPU is watched again."""
        self.thread.driver.lost = {gpu}
        await self.changed(1)
        self.thread.driver.lost = set()
        watched = len(self.thread.watched)
        while len(self.thread.watched) == watched:
            await self.thread.next_poll()


@asynccontextmanager
async def running(poll_seconds: float = 0.005, settings: HealthSettings | None = None) -> AsyncIterator[Running]:
    thread, clock, changes, counted = Thread(), [0.0], list[dict[DeviceUUID, str]](), list[str]()
    watch = HealthWatch(
        thread,
        thread.open,
        thread,
        lambda problems: changes.append(dict(problems)),
        replace(settings or HealthSettings(), poll_seconds=poll_seconds),
        count=counted.append,
        now=lambda: clock[0],
    )
    watch.watch(BOTH)
    task = asyncio.create_task(watch.run())
    try:
        yield Running(watch, thread, clock, changes, counted)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_gpus_are_polled_first_and_then_registered_once() -> None:
    async with running() as it:
        for _ in range(3):
            await it.thread.next_poll()
        assert it.thread.watched == [BOTH]
        assert it.changes == []
    assert it.thread.stopped


async def test_an_event_is_told_at_once_and_followed_by_a_poll() -> None:
    async with running(poll_seconds=NEVER) as it:
        await it.thread.next_poll()
        polls = it.thread.polls
        it.thread.driver.lost = {A}
        it.thread.tell(XidSeen(gpu=A, xid=79))
        await it.changed(2)
        assert it.changes == [{A: FALLEN}, {A: LOST}]
        assert it.counted == ["xid", "unhealthy"]
        assert it.thread.polls == polls + 1


async def test_an_xid_of_no_gpu_is_followed_by_a_poll_of_all() -> None:
    async with running(poll_seconds=NEVER) as it:
        await it.thread.next_poll()
        it.thread.driver.lost = {B}
        it.thread.tell(XidSeen(gpu=None, xid=79))
        await it.changed(1)
        assert it.changes == [{B: LOST}]


async def test_a_gpu_that_answers_again_is_registered_anew_and_returns_after_the_hold_time() -> None:
    async with running() as it:
        await it.lost_and_back(A)
        it.thread.tell(Monitored(gpus=BOTH))
        it.clock[0] = 59.0
        for _ in range(3):
            await it.thread.next_poll()
        assert it.watch.problems == {A: LOST}
        it.clock[0] = 60.0
        await it.changed(2)
        assert it.changes == [{A: LOST}, {}]
        assert it.counted == ["unhealthy", "registration", "recovered"]


async def test_gpus_that_come_later_are_polled_and_registered_at_once() -> None:
    async with running(poll_seconds=NEVER) as it:
        await it.thread.next_poll()
        it.watch.watch(frozenset({A}))
        await it.thread.next_poll()
        assert it.thread.watched == [BOTH, frozenset({A})]


async def test_a_gpu_that_went_on_its_way_back_is_not_waited_for() -> None:
    async with running() as it:
        await it.lost_and_back(A)
        it.watch.watch(frozenset({B}))
        while it.thread.watched[-1] != {B}:
            await it.thread.next_poll()
        for _ in range(3):
            await it.thread.next_poll()
        assert it.thread.watched.count(frozenset({B})) == 1


async def test_a_library_opened_anew_is_registered_with_again() -> None:
    async with running() as it:
        await it.thread.next_poll()
        it.thread.calls = NvmlCalls(it.thread.driver)
        while len(it.thread.watched) < 2:
            await it.thread.next_poll()
        assert it.thread.watched == [BOTH, BOTH]


async def test_without_a_driver_nothing_is_concluded() -> None:
    async with running() as it:
        it.thread.available = False
        await it.thread.next_poll()
        await it.thread.next_poll()
        assert (it.changes, it.watch.problems) == ([], {})


async def test_gpus_without_events_are_named_and_healthy_and_tried_again_now_and_then() -> None:
    async with running() as it:
        await it.thread.next_poll()
        it.thread.tell(Monitored(gpus=frozenset({A}), refused={B: "Not Supported"}))
        await it.thread.next_poll()
        await it.thread.next_poll()
        assert (it.watch.unmonitored, it.watch.problems) == ({B: "Not Supported"}, {})
        assert it.thread.watched == [BOTH]
        it.clock[0] = 60.0
        await it.thread.next_poll()
        await it.thread.next_poll()
        assert it.thread.watched == [BOTH, BOTH]


async def test_with_all_checks_disabled_the_driver_is_not_asked() -> None:
    async with running(settings=HealthSettings(checks=("-all",))) as it:
        await it.watch.run()
        assert (it.thread.polls, it.thread.watched) == (0, [])


WATCH = """
import asyncio, json, os, sys
from deviceplugin.health.step import HealthSettings
from deviceplugin.health_watch import HealthWatch
from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.events import NvmlEvents
from deviceplugin.own_threads import OwnThreads
library, machine_file, gpus, *states = sys.argv[1:]
async def main():
    nvml, changed, counted = Nvml(library), asyncio.Event(), []
    settings = HealthSettings(recovery_seconds=0.0, poll_seconds=0.05)
    tell = lambda _: changed.set()
    watch = HealthWatch(OwnThreads("nvml"), nvml.calls, NvmlEvents(), tell, settings, count=counted.append)
    watch.watch(frozenset(gpus.split(",")))
    task = asyncio.create_task(watch.run())
    while "registration" not in counted:
        await asyncio.sleep(0.01)
    for state in states:
        changed.clear()
        os.replace(state, machine_file)
        async with asyncio.timeout(30):
            await changed.wait()
        print(json.dumps([watch.problems[gpu] for gpu in sorted(watch.problems)]))
    task.cancel()
asyncio.run(main())
"""


@pytest.mark.needs_compiler
def test_a_gpu_leaves_and_returns_through_the_real_threads_and_the_fake_library(tmp_path: Path) -> None:
    machine, current = load("hgxh100-8x-h100-80g"), tmp_path / "machine"
    states: list[list[Fault]] = [[lost_gpu(1)], [], [RowsRemapped(gpu=0, pending=True)], []]
    files = [tmp_path / f"state-{number}" for number in range(len(states))]
    for path, faults in zip([current, *files], [[], *states], strict=True):
        write_machine_file(machine, path, "", faults)
    gpus = ",".join(gpu_uuid(machine.id, index, "") for index in range(2))
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(build_library()), str(current), gpus, *map(str, files)],
        env={**os.environ, MACHINE_FILE_VARIABLE: str(current)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, [json.loads(line) for line in done.stdout.splitlines()]) == (
        0,
        [[LOST], [], ["a remapped memory row waits for a GPU reset"], []],
    ), done.stderr


async def test_an_xid_that_a_gpu_reports_without_pause_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running(poll_seconds=NEVER) as it:
        await it.thread.next_poll()
        for round_, second in enumerate((0, 1, 59, 60), start=1):
            it.clock[0] = second
            for _ in range(100):
                it.thread.tell(XidSeen(gpu=A, xid=13))
            it.thread.tell(XidSeen(gpu=B, xid=31))
            while it.counted.count("xid") < 101 * round_:  # noqa: ASYNC110 - nothing else to wait for
                await asyncio.sleep(0)
    assert [caplog.text.count(f"{gpu}: the driver reported XID {xid}") for gpu, xid in ((A, 13), (B, 31))] == [2, 2]


async def test_the_last_xid_is_the_last_also_when_it_comes_again_within_a_minute() -> None:
    async with running(poll_seconds=NEVER) as it:
        await it.thread.next_poll()
        for number, xid in enumerate((13, 31, 13), start=1):
            it.thread.tell(XidSeen(gpu=A, xid=xid))
            while it.counted.count("xid") < number:  # noqa: ASYNC110 - nothing else to wait for
                await asyncio.sleep(0)
            assert it.watch.xids[A] == xid
