"""The pipes by which hooks of containers request limits, and get answers (edge).

Both ends stay open here: a hook finds a reader at once, and the end of this process is the end of its answer.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from deviceplugin.container.limit_hook import ANSWER, ASK, END, GRANTED
from program.tasks import Tasks

_MOST_BYTES = 1 << 20
"""The longest state of a container that is read; a pod's annotations may have 256 KiB."""
_CHUNK = 1 << 16
_LONGEST_ID, _LONGEST_ANSWER = 20, 4000
"""Bytes; together no more than a pipe takes in one piece."""
_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class HookPipes:
    """The pipes of the containers that are about to start, by folder. `check` gets the state of a container and returns
    why it must not start, empty if it may.
    """

    def __init__(self, check: Callable[[str, bytes], Awaitable[str]]) -> None:
        self._check = check
        self._open: dict[str, tuple[int, int]] = {}
        self._text: dict[str, bytes] = {}
        self._answering = Tasks()

    def open(self, folder: str) -> None:
        """Begins to answer the hook of this folder. Raises OSError."""
        self.close(folder)
        request_pipe = os.open(f"{folder}/{ASK}", _OPEN)
        try:
            answer_pipe = os.open(f"{folder}/{ANSWER}", _OPEN)
        except OSError:
            os.close(request_pipe)
            raise
        self._open[folder], self._text[folder] = (request_pipe, answer_pipe), b""
        asyncio.get_running_loop().add_reader(request_pipe, self._read, folder)

    def close(self, folder: str) -> None:
        """Answers no more. A hook that waits fails."""
        if folder in self._open:
            request_pipe, answer_pipe = self._open.pop(folder)
            del self._text[folder]
            asyncio.get_running_loop().remove_reader(request_pipe)
            os.close(request_pipe)
            os.close(answer_pipe)

    async def end(self) -> None:
        for folder in tuple(self._open):
            self.close(folder)
        await self._answering.end()

    def _read(self, folder: str) -> None:
        request_pipe, _ = self._open[folder]
        with suppress(BlockingIOError):
            self._text[folder] += os.read(request_pipe, _CHUNK)
        text, mark = self._text[folder], f"\n{END}\n".encode()
        if text.endswith(mark):
            self._text[folder] = b""
            state, _, hook = text.removesuffix(mark).rpartition(b"\n")
            self._answering.begin(self._answer(folder, self._open[folder], hook, state))
        elif len(text) > _MOST_BYTES:
            self._text[folder] = b""

    async def _answer(self, folder: str, pipes: tuple[int, int], hook: bytes, state: bytes) -> None:
        problem = await self._check(folder, state)
        if self._open.get(folder) != pipes:  # the container starts again
            return
        _, answer_pipe = pipes
        with suppress(BlockingIOError):
            # A hook that was ended before it read leaves its answer.
            while os.read(answer_pipe, _CHUNK):
                pass
        answer = (" ".join(problem.split()) or GRANTED).encode()
        os.write(answer_pipe, hook[:_LONGEST_ID] + b" " + answer[:_LONGEST_ANSWER] + b"\n")
