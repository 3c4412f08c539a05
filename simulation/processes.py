"""Programs the simulation runs beside itself: started, written to a log file, awaited, stopped by process id."""

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_POLL_SECONDS = 0.02
_SHOWN_LINES = 5
_PR_SET_PDEATHSIG = 1
_END_WITH_PARENT = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Becomes the program; the kernel kills that when we are killed and cannot stop it in order. Not by a function between
fork and exec: gRPC has threads here.
"""


class ProcessFailed(Exception):
    """A program ended, or did not print what was awaited; the text holds its last lines."""


class ChildProcess:
    """One started program."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        process: asyncio.subprocess.Process,
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log = log
        self._environment = environment
        self._process = process

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "ChildProcess":
        """Its own session, so that Ctrl-C reaches us alone and we stop it in order. Raises ProcessFailed."""
        return cls(name, arguments, environment, log, await _started(name, arguments, environment, log))

    async def start_again(self) -> None:
        """Starts the program again after it has ended, with the same arguments. Raises ProcessFailed."""
        self._process = await _started(self.name, self.arguments, self._environment, self.log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        return self._process.returncode

    async def ended(self) -> int:
        """Waits for its end; the exit status."""
        return await self._process.wait()

    def check_running(self) -> None:
        """Raises ProcessFailed when it has ended."""
        if self._process.returncode is not None:
            raise ProcessFailed(f"{self.name} ended with status {self._process.returncode}: {self.last_lines()}")

    async def wait_for_line(self, pattern: str, timeout_seconds: float) -> re.Match[str]:
        """Returns the first match in its output. Raises ProcessFailed when it ends or stays silent."""
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
        """Sends SIGTERM, then SIGKILL after the grace, also to what it has started."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def last_lines(self) -> str:
        return " / ".join(self._output().splitlines()[-_SHOWN_LINES:])

    def _output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


async def _started(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> asyncio.subprocess.Process:
    """Raises ProcessFailed."""
    program = shutil.which(arguments[0])
    if program is None:
        raise ProcessFailed(f"{name} could not be started: {arguments[0]} is not there, or is no program")
    try:
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-ISc", _END_WITH_PARENT, program, *arguments[1:]),
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise ProcessFailed(f"{name} could not be started: {error}") from error
