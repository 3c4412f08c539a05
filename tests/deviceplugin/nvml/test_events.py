"""The event thread: the real nvidia-ml-py over the fake library, in a fresh process."""

# ruff: noqa: N802 - the names are those of nvidia-ml-py
import ctypes
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from deviceplugin.health.step import Monitored, XidSeen
from deviceplugin.nvml.calls import TIMEOUT, NvmlCalls
from deviceplugin.nvml.events import NvmlEvents
from proto.devices import DeviceUUID
from simulation.machines import gpu_uuid, load
from simulation.machines.description import MachineDescription, MigDevice
from simulation.nvml.machine_file import (
    DOUBLE_BIT_ECC,
    EVERY_GPU,
    XID,
    CallFails,
    Cleared,
    EventTypesAre,
    Fault,
    MachineEvent,
    lost_gpu,
    write_machine_file,
)
from tests.deviceplugin.nvml_process import lines_of

LISTEN = """
import dataclasses, json, os, queue, sys
from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.events import NvmlEvents
library, machine_file, gpus, *steps = sys.argv[1:]
nvml, events, heard = Nvml(library), NvmlEvents(), queue.Queue()
for step in steps:
    if step == "watch":
        events.watch(nvml.calls(), frozenset(gpus.split(",")))
    elif step == "start":
        events.start(heard.put)
    elif step == "stop":
        events.stop()
        print(json.dumps([type(event).__name__ for event in heard.queue]))
    elif step == "hear":
        event = heard.get(timeout=30)
        facts = {name: sorted(value) if isinstance(value, (frozenset, dict)) else value
                 for name, value in dataclasses.asdict(event).items()}
        print(json.dumps([type(event).__name__, facts]))
    else:
        os.replace(step, machine_file)
nvml.close()
"""

H100 = load("hgxh100-8x-h100-80g")
CUT = replace(
    H100,
    gpus=(replace(H100.gpus[0], mig="enabled", mig_devices=(MigDevice("1g.10gb", 9984, 3, 0),)), *H100.gpus[1:]),
)
"""Its first GPU is divided."""
FIRST, SECOND = (DeviceUUID(gpu_uuid(H100.id, number, "")) for number in (0, 1))
BOTH = ["Monitored", {"gpus": sorted([FIRST, SECOND]), "refused": []}]
RECOVERY_ACTION = 0x8000
UNKNOWN = 999
NO_WAIT = CallFails(gpu=EVERY_GPU, call="nvmlEventSetWait", error="UNKNOWN")
NO_SET = CallFails(gpu=EVERY_GPU, call="nvmlEventSetCreate", error="UNKNOWN")


def listen(
    folder: Path, *steps: str | Sequence[Fault], before: Sequence[Fault] = (), machine: MachineDescription = H100
) -> list[Any]:
    """What one process hears of GPUs 0 and 1; a step that is a list of faults is the machine from then on."""
    current = folder / "machine"
    write_machine_file(machine, current, "", before)
    words: list[str] = []
    for number, step in enumerate(steps):
        if isinstance(step, str):
            words.append(step)
            continue
        write_machine_file(machine, folder / f"state-{number}", "", step)
        words.append(str(folder / f"state-{number}"))
    return lines_of(LISTEN, current, f"{FIRST},{SECOND}", *words)


def xid(
    number: int, gpu: str | None, gpu_instance: int | None = None, compute_instance: int | None = None
) -> list[Any]:
    facts = {"gpu": gpu, "xid": number, "gpu_instance": gpu_instance, "compute_instance": compute_instance}
    return ["XidSeen", facts]


@pytest.mark.needs_compiler
def test_events_are_told_with_their_gpu_and_nothing_after_the_stop(tmp_path: Path) -> None:
    told: list[Fault] = [
        MachineEvent(gpu=1, data=79),
        MachineEvent(gpu=0, data=94, gpu_instance=3, compute_instance=0),
        MachineEvent(gpu=0, data=95, gpu_instance=3),
        MachineEvent(gpu=1, data=0, type=DOUBLE_BIT_ECC),
        MachineEvent(gpu=1, data=0, type=RECOVERY_ACTION),
        MachineEvent(gpu=2, data=79),
    ]
    after: list[Fault] = [*told, MachineEvent(gpu=0, data=48)]
    assert listen(tmp_path, "start", "watch", "hear", told, *["hear"] * 5, "stop", after, machine=CUT) == [
        BOTH,
        xid(79, SECOND),
        xid(94, FIRST, 3, 0),
        xid(95, FIRST, 3),
        ["DoubleBitError", {"gpu": SECOND}],
        ["Hint", {"gpu": SECOND}],
        [],
    ]


@pytest.mark.needs_compiler
def test_an_xid_of_a_gpu_without_mig_names_no_instance(tmp_path: Path) -> None:
    """Some drivers answer instance 0 in place of "none"."""
    told: list[Fault] = [MachineEvent(gpu=0, data=94, gpu_instance=0, compute_instance=0)]
    assert listen(tmp_path, "start", "watch", "hear", told, "hear")[1:] == [xid(94, FIRST)]


@pytest.mark.needs_compiler
def test_a_gpu_off_the_bus_is_known_by_its_handle(tmp_path: Path) -> None:
    lost: list[Fault] = [lost_gpu(1), MachineEvent(gpu=1, data=79)]
    assert listen(tmp_path, "start", "watch", "hear", lost, "hear") == [BOTH, xid(79, SECOND)]


@pytest.mark.needs_compiler
def test_only_what_a_gpu_supports_is_registered(tmp_path: Path) -> None:
    few: list[Fault] = [EventTypesAre(gpu=0, types=XID), EventTypesAre(gpu=1, types=0x10)]
    heard = listen(tmp_path, "start", "watch", "hear", [*few, MachineEvent(gpu=0, data=79)], "hear", before=few)
    assert heard == [["Monitored", {"gpus": [FIRST], "refused": [SECOND]}], xid(79, FIRST)]


@pytest.mark.needs_compiler
def test_a_gpu_that_cannot_be_registered_leaves_the_others_registered_and_comes_back_when_asked(tmp_path: Path) -> None:
    lost = [lost_gpu(1)]
    assert listen(tmp_path, "start", "watch", "hear", [], "watch", "hear", before=lost) == [
        ["Monitored", {"gpus": [FIRST], "refused": [SECOND]}],
        BOTH,
    ]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("broken", [[NO_SET], [NO_WAIT]], ids=["no event set", "no waiting"])
def test_monitoring_is_lost_while_no_event_set_works_and_comes_back_by_itself(
    broken: list[Fault], tmp_path: Path
) -> None:
    back = [*broken, Cleared()]
    lost = ["Monitored", {"gpus": [], "refused": sorted([FIRST, SECOND])}]
    heard = listen(
        tmp_path, "start", "watch", "hear", back, "hear", [*back, MachineEvent(gpu=0, data=48)], "hear", before=broken
    )
    assert heard == [lost, BOTH, xid(48, FIRST)]


class ScriptedDriver(ModuleType):
    """In the place of nvidia-ml-py: each wait ends with the next error of `waits`, the one after the last never."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, *waits: int) -> None:
        super().__init__("pynvml")
        self.waits = list(waits)
        self.hangs, self.released = threading.Event(), threading.Event()
        self.sets = 0

    def nvmlEventSetCreate(self) -> int:
        self.sets += 1
        return self.sets

    def nvmlEventSetFree(self, number: int) -> None: ...

    def nvmlEventSetWait_v2(self, number: int, timeout_ms: int) -> None:
        if not self.waits:
            self.hangs.set()
            self.released.wait()
        raise self.NVMLError(self.waits.pop(0) if self.waits else TIMEOUT)


def test_a_wait_that_fails_once_makes_a_new_set_and_loses_no_monitoring() -> None:
    driver, heard = ScriptedDriver(TIMEOUT, TIMEOUT, UNKNOWN, TIMEOUT), list[object]()
    events = NvmlEvents()
    events.start(heard.append)
    events.watch(NvmlCalls(driver), frozenset())
    assert driver.hangs.wait(30)
    driver.released.set()
    events.stop()
    assert (heard, driver.sets) == ([Monitored(), Monitored()], 2)


class HangingRegistration(ScriptedDriver):
    """GPU `stuck` is registered as soon as it is let go; the others at once. No event ever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: str = ""
        self.freed, self.registered = list[int](), list[tuple[str, int]]()
        self.let_go = threading.Event()

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        self.handles = {**getattr(self, "handles", {}), uuid: ctypes.create_string_buffer(uuid.encode())}
        return self.handles[uuid]

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int:
        return XID

    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, number: int) -> None:
        uuid = handle.value.decode()
        if uuid == self.stuck:
            self.let_go.wait()
        self.registered.append((uuid, number))

    def nvmlEventSetFree(self, number: int) -> None:
        self.freed.append(number)

    def nvmlEventSetWait_v2(self, number: int, timeout_ms: int) -> None:
        raise self.NVMLError(TIMEOUT)


def test_a_registration_that_hangs_is_begun_once_and_costs_one_thread_and_one_set() -> None:
    driver, heard = HangingRegistration(), queue.Queue[Any]()
    driver.stuck = SECOND
    events, before = NvmlEvents(), threading.active_count()
    events.start(heard.put)
    for _ in range(5):
        events.watch(NvmlCalls(driver), frozenset({FIRST, SECOND}))
        told = heard.get(timeout=30)
        assert (told.gpus, set(told.refused)) == ({FIRST}, {SECOND})
    assert threading.active_count() - before == 3  # for the events and for each GPU
    assert (driver.sets, set(driver.freed)) == (5, {2, 3, 4})
    driver.let_go.set()
    while told.refused:
        events.watch(NvmlCalls(driver), frozenset({FIRST, SECOND}))
        told = heard.get(timeout=30)
    assert 1 in driver.freed
    assert (SECOND, driver.sets) in driver.registered
    events.stop()
    assert sorted(driver.freed) == list(range(1, driver.sets + 1))


class Flood(HangingRegistration):
    """`left` events are waiting."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.rounds = 0

    def nvmlEventSetWait_v2(self, number: int, timeout_ms: int) -> Any:
        self.rounds += bool(timeout_ms)
        if not self.left:
            raise self.NVMLError(TIMEOUT)
        self.left -= 1
        return SimpleNamespace(
            device=self.handles[FIRST], eventType=XID, eventData=13, gpuInstanceId=0, computeInstanceId=0
        )


def test_events_that_wait_are_fetched_many_in_a_round() -> None:
    driver, heard = Flood(1601), queue.Queue[Any]()
    events = NvmlEvents()
    events.start(heard.put)
    events.watch(NvmlCalls(driver), frozenset({FIRST}))
    found = [heard.get(timeout=30) for _ in range(1602)]
    assert sum(isinstance(each, XidSeen) for each in found) == 1601
    assert driver.rounds <= 101
    events.stop()


def test_a_driver_that_hangs_does_not_hold_up_the_stop() -> None:
    driver, heard = ScriptedDriver(), list[object]()
    events = NvmlEvents()
    events.start(heard.append)
    events.watch(NvmlCalls(driver), frozenset())
    assert driver.hangs.wait(30)
    events.stop()
    driver.released.set()
    assert heard == []


def test_a_thread_that_watches_nothing_stops() -> None:
    heard, others = list[object](), threading.enumerate()
    events = NvmlEvents()
    events.start(heard.append)
    events.stop()
    assert heard == []
    assert not any(thread.name == "nvml-events" for thread in threading.enumerate() if thread not in others)
