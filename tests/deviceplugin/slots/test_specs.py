from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deviceplugin.container.cdi import SLOT_KIND
from deviceplugin.container.edits import ContainerEdits
from deviceplugin.slots.files import SlotFiles
from deviceplugin.slots.slot import SPEC_FILE, Start
from deviceplugin.slots.specs import SlotSpecs


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def writer(folder: Path, clock: Callable[[], float]) -> SlotSpecs:
    """As each of two daemons on a node has its own."""
    return SlotSpecs(SlotFiles(str(folder), others=()), dict, monotonic=clock, pause_seconds=0)


async def put(specs: SlotSpecs, folder: Path, slot: str, now: float) -> None:
    spec = SlotFiles(str(folder), others=()).spec(slot, ContainerEdits(env={"SLOT": slot}))
    await specs.put({slot: spec}, {slot: Start(pod_uid="", container="main", known_id="", since=now)})


def defined(folder: Path) -> list[str]:
    return sorted(SlotFiles(str(folder), others=()).read())


async def test_two_daemons_leave_each_others_slots_alone(tmp_path: Path) -> None:
    clock = Clock()
    going, coming = writer(tmp_path, clock), writer(tmp_path, clock)
    await put(going, tmp_path, "one", clock.now)
    await put(coming, tmp_path, "two", clock.now)
    await put(going, tmp_path, "three", clock.now)
    assert defined(tmp_path) == ["one", "three", "two"]


async def test_what_another_daemon_wrote_goes_once_kubelet_would_ask_again(tmp_path: Path) -> None:
    clock = Clock()
    coming = writer(tmp_path, clock)
    await put(writer(tmp_path, clock), tmp_path, "one", clock.now)
    clock.now = 10
    await put(coming, tmp_path, "two", clock.now)
    clock.now = 159
    await coming.collect()
    assert defined(tmp_path) == ["one", "two"]
    clock.now = 160
    await coming.collect()
    assert not (tmp_path / SPEC_FILE).exists()


async def test_of_one_slot_the_last_word_stands(tmp_path: Path) -> None:
    clock = Clock()
    going, coming = writer(tmp_path, clock), writer(tmp_path, clock)
    await put(going, tmp_path, "one", clock.now)
    await put(coming, tmp_path, "one", clock.now)
    spec = SlotFiles(str(tmp_path), others=()).read()
    assert list(spec) == ["one"]
    assert spec["one"]["kind"] == SLOT_KIND


async def test_a_file_that_is_no_spec_is_written_over(tmp_path: Path) -> None:
    nameless = '{"cdiVersion": "0.6.0", "kind": "topogpu.io/slot", "devices": [{"name": 1, "containerEdits": {}}]}'
    for text in ("", "{}", '{"devices": [1]}', '{"devices": [{}]}', "[]", '{"devices": [{"name": "x"}]}', nameless):
        (tmp_path / SPEC_FILE).write_text(text)
        await put(writer(tmp_path, Clock()), tmp_path, "one", 0)
        assert defined(tmp_path) == ["one"]


def test_two_daemons_may_try_the_folder_at_the_same_time(tmp_path: Path) -> None:
    """One that cannot write it serves without slots."""

    def problems(_: int) -> set[str]:
        return {SlotFiles(str(tmp_path), others=()).problem() for _ in range(200)}

    with ThreadPoolExecutor() as daemons:
        assert list(daemons.map(problems, range(2))) == [{""}] * 2
