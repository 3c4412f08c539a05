"""Programs the demo runs beside itself: started, written to a log file, awaited, stopped by process id."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_POLL_SECONDS = 0.02
_SHOWN_LINES = 5


class ProcessFailed(Exception):
    """A program ended, or did not say what was awaited; the text holds its last lines."""


class ChildProcess:
    """One started program."""

    def __init__(self, name: str, log: Path, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "ChildProcess":
        """Its own session, so that Ctrl-C reaches us alone and we stop it in order. Raises ProcessFailed."""
        try:
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *arguments,
                    env=dict(environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProcessFailed(f"{name} could not be started: {error}") from error
        return cls(name, log, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        return self._process.returncode

    def check_running(self) -> None:
        """Raises ProcessFailed when it has ended."""
        if self._process.returncode is not None:
            raise ProcessFailed(f"{self.name} ended with status {self._process.returncode}: {self.last_lines()}")

    async def wait_for_line(self, pattern: str, timeout_seconds: float) -> re.Match[str]:
        """The first match in its output. Raises ProcessFailed when it ends or stays silent."""
        expression = re.compile(pattern)
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    found = expression.search(self._output())
                    if found:
                        return found
                    self.check_running()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ProcessFailed(
                f"{self.name} was not ready within {timeout_seconds:g} s: {self.last_lines() or 'it printed nothing'}"
            ) from None

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after the grace."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def last_lines(self) -> str:
        return " / ".join(self._output().splitlines()[-_SHOWN_LINES:])

    def _output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""
