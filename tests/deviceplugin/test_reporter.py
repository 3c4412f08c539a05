import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from deviceplugin.changes import Changes
from deviceplugin.report import Report
from deviceplugin.reporter import Reporter


async def pauses(*said: str, seconds_apart: float = 0.0) -> list[float]:
    """After each report, when the Node never keeps what is reported."""
    waiting, slept, now = list(said), list[float](), [datetime(2030, 1, 1, tzinfo=UTC)]

    async def write(_: Mapping[str, object]) -> None:
        now[0] += timedelta(seconds=seconds_apart)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    def due(_now: datetime, _last: datetime | None) -> Report:
        return Report(body={"says": waiting.pop(0)}) if waiting else Report()

    reporter = Reporter(lambda: "it", Changes(), due=due, write=write, now=lambda: now[0], sleep=sleep)
    running = asyncio.create_task(reporter.run())
    while len(slept) < len(said):  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    running.cancel()
    return slept


async def test_what_another_writer_undoes_again_and_again_is_written_more_and_more_slowly() -> None:
    assert await pauses(*["a"] * 10) == [0.5, 0.5, 0.5, 0.5, 0.5, 1, 2, 4, 8, 8]


async def test_reports_are_counted_whatever_they_say() -> None:
    assert await pauses(*"abcdefghij") == [0.5, 0.5, 0.5, 0.5, 0.5, 1, 2, 4, 8, 8]


async def test_reports_that_are_long_ago_do_not_count() -> None:
    assert await pauses(*["a"] * 10, seconds_apart=15) == [0.5] * 10


async def test_a_clock_that_is_set_back_slows_nothing() -> None:
    assert await pauses(*["a"] * 10, seconds_apart=-15) == [0.5] * 10
