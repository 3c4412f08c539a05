import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from simulation.processes import ChildProcess, ProcessFailed

LONGEST_SECONDS = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield path
    shutil.rmtree(path)


async def start(folder: Path, program: str) -> ChildProcess:
    return await ChildProcess.start("child", [sys.executable, "-uc", program], os.environ, folder / "log")


@pytest.fixture
async def speaker(folder: Path) -> AsyncIterator[ChildProcess]:
    process = await start(folder, "import time; print('listening on 42'); time.sleep(60)")
    yield process
    await process.stop()


async def test_a_line_is_awaited_and_the_program_stopped(speaker: ChildProcess) -> None:
    assert (await speaker.wait_for_line(r"listening on (\d+)", LONGEST_SECONDS))[1] == "42"
    speaker.check_running()
    await speaker.stop()
    assert speaker.exit_status is not None
    await speaker.stop()


async def test_a_program_that_ends_is_told_with_its_last_lines(folder: Path) -> None:
    process = await start(folder, "print('no such file'); raise SystemExit(3)")
    with pytest.raises(ProcessFailed, match="child ended with status 3: no such file"):
        await process.wait_for_line("never", LONGEST_SECONDS)


async def test_a_program_that_stays_silent_is_told(speaker: ChildProcess) -> None:
    with pytest.raises(ProcessFailed, match=r"child was not ready within 0.3 s"):
        await speaker.wait_for_line("never", 0.3)


async def test_a_program_that_ignores_sigterm_is_killed(folder: Path) -> None:
    process = await start(
        folder, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    )
    await process.wait_for_line("up", LONGEST_SECONDS)
    await process.stop(grace_seconds=0.1)
    assert process.exit_status == -9


async def test_a_program_that_is_not_there_is_told(folder: Path) -> None:
    with pytest.raises(ProcessFailed, match="child could not be started"):
        await ChildProcess.start("child", ["/nonexistent"], os.environ, folder / "log")
