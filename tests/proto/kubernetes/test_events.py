from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proto.kubernetes.client import ApiServer
from proto.kubernetes.events import (
    LONGEST_QUEUE,
    MOST_ORDINARY,
    ORDINARY_AT_ONCE,
    ORDINARY_PER_SECOND,
    PAUSE_SECONDS,
    EventRecorder,
)
from proto.kubernetes.objects import Notice, ObjectReference
from simulation.apiserver import EmbeddedApiServer

T0 = datetime(2030, 1, 1, tzinfo=UTC)


class Rig:
    def __init__(self, server: EmbeddedApiServer, api: ApiServer) -> None:
        self._server = server
        self.seconds = 0.0
        self.recorder = EventRecorder(api=api, component="tests", now=lambda: T0, monotonic=lambda: self.seconds)

    def happens(self, pod: str, message: str, *, warning: bool = False) -> None:
        subject = ObjectReference(api_version="v1", kind="Pod", name=pod, namespace="default", uid=f"uid-{pod}")
        self.recorder.record(subject, Notice(reason="Told", message=message, warning=warning))

    async def told(self) -> list[tuple[str, str, int]]:
        await self.recorder.flush(30.0)
        events = sorted(
            self._server.store.objects("events"), key=lambda event: int(event["metadata"]["resourceVersion"])
        )
        return [(event["involvedObject"]["name"], event["message"], event["count"]) for event in events]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with EmbeddedApiServer() as server:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        api = await ApiServer.connect(str(tmp_path / "kubeconfig"))
        try:
            yield Rig(server, api)
        finally:
            await api.close()


async def test_warnings_are_told_before_what_went_well(rig: Rig) -> None:
    rig.happens("a", "bound")
    rig.happens("b", "no node", warning=True)
    rig.happens("c", "bound")
    assert await rig.told() == [("b", "no node", 1), ("a", "bound", 1), ("c", "bound", 1)]


async def test_the_same_is_told_once_a_minute_and_then_counted(rig: Rig) -> None:
    for _ in range(5):
        rig.happens("a", "no node", warning=True)
    rig.seconds = 60.0
    rig.happens("a", "no node", warning=True)
    assert await rig.told() == [("a", "no node", 1), ("a", "no node", 5)]


async def test_when_more_happens_than_can_be_told_warnings_are_kept_longest(rig: Rig) -> None:
    for number in range(LONGEST_QUEUE):
        rig.happens(f"good-{number}", "bound")
    for number in range(LONGEST_QUEUE):
        rig.happens(f"bad-{number}", "no node", warning=True)
    told = [pod for pod, _, _ in await rig.told()]
    assert sum(pod.startswith("good") for pod in told) == MOST_ORDINARY
    assert sum(pod.startswith("bad") for pod in told) == LONGEST_QUEUE - MOST_ORDINARY


async def test_what_went_well_is_told_at_once_after_a_rest_and_then_slower_than_warnings(rig: Rig) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        rig.seconds += seconds
        if len(pauses) == 250:
            raise EOFError

    for number in range(200):
        rig.happens(f"good-{number}", "bound")
    for number in range(50):
        rig.happens(f"bad-{number}", "no node", warning=True)
    with pytest.raises(EOFError):
        await rig.recorder.run(sleep)
    assert set(pauses[: 50 + ORDINARY_AT_ONCE]) == {PAUSE_SECONDS}
    assert pauses[-20:] == pytest.approx([1 / ORDINARY_PER_SECOND] * 20)


async def test_what_is_remembered_of_told_events_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proto.kubernetes.events.MOST_QUIET", 2)
    for pod in "abcab":
        rig.happens(pod, "bound")
    assert [name for name, _, _ in await rig.told()] == ["a", "b", "c", "a", "b"]
    rig.happens("b", "bound")
    assert len(await rig.told()) == 5
