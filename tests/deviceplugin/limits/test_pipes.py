"""The pipes of hooks, with the hook's own shell on their other end."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from deviceplugin.container.limit_folder import make_limit_folder
from deviceplugin.container.limit_hook import limit_hook
from deviceplugin.limits.pipes import HookPipes
from proto.devices import DeviceUUID
from tests.polling import until

LIMITS = {DeviceUUID("GPU-1"): 1000}


@asynccontextmanager
async def answering(folder: Path, *answers: str) -> AsyncIterator[tuple[HookPipes, list[bytes]]]:
    """Pipes that give these answers, and what they were handed."""
    heard: list[bytes] = []

    async def ask(_: str, state: bytes) -> str:
        heard.append(state)
        return answers[len(heard) - 1]

    make_limit_folder(str(folder), LIMITS)
    pipes = HookPipes(ask)
    pipes.open(str(folder))
    try:
        yield pipes, heard
    finally:
        await pipes.end()


async def hook(folder: Path, state: bytes) -> tuple[int, str]:
    """Exit status of the hook, and what it wrote on standard error."""
    _, *words = limit_hook(str(folder))["args"]
    running = await asyncio.create_subprocess_exec(
        "/bin/sh", *words, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, said = await running.communicate(state)
    return await running.wait(), said.decode()


async def test_a_hook_hands_over_the_state_and_takes_the_answer(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    async with answering(folder, "", "the driver\nrefuses it") as (_, heard):
        assert await hook(folder, b'{"id": "one"}\n') == (0, "")
        assert await hook(folder, b'{"id": "two"}') == (1, "the driver refuses it\n")
    assert [state.strip() for state in heard] == [b'{"id": "one"}', b'{"id": "two"}']


async def test_a_state_of_any_length_and_content_gets_one_answer(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    states = [b"", b"\x00\xff" * 40_000, b"\n.\nx", b"." * 300_000]
    async with answering(folder, *["no"] * (len(states) + 1)) as (_, heard):
        for state in states:
            assert (await hook(folder, state))[0] == 1
        assert heard[3].strip() == states[3]


async def test_an_answer_that_no_hook_read_is_not_that_of_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    async with answering(folder, "", "not this one") as (_, heard):
        (folder / "ask").write_bytes(b"{}\n1\n.\n")  # a hook that its runtime ended before it read
        await until(lambda: bool(heard))
        assert await hook(folder, b"{}") == (1, "not this one\n")


async def test_a_hook_passes_over_an_answer_that_lies_in_the_pipe(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make_limit_folder(str(folder), LIMITS)
    asked, answered = (os.open(folder / name, os.O_RDWR) for name in ("ask", "answer"))
    try:
        os.write(answered, b"1 ok\nok\n\n")
        running = asyncio.create_task(hook(folder, b"{}"))
        asking = await asyncio.to_thread(os.read, asked, 100)
        while not asking.endswith(b".\n"):
            asking += await asyncio.to_thread(os.read, asked, 100)
        os.write(answered, asking.split()[1] + b" not this one\n")
        assert await running == (1, "not this one\n")
    finally:
        os.close(asked)
        os.close(answered)


async def test_without_the_daemon_a_hook_fails(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    async with answering(folder):
        (folder / "answer").unlink()
    assert (await hook(tmp_path / "nowhere", b"{}"))[0] != 0
