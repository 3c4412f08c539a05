"""What a program that seems to hang writes of itself."""

import asyncio
import re
import signal
import sys
import textwrap

_PROGRAM = """
    import asyncio
    import threading
    import ctypes
    from program.tasks import show_stacks_on_signal

    def stuck_thread():
        threading.Event().wait()

    async def inner(event):
        await event.wait()

    async def outer():
        await inner(asyncio.Event())

    async def main():
        show_stacks_on_signal()
        threading.Thread(target=stuck_thread, daemon=True).start()
        task = asyncio.create_task(outer(), name="patient")
        print("ready", flush=True)
        if {crashes}:
            ctypes.string_at(0)
        await task

    asyncio.run(main())
"""


async def _started(*, crashes: bool) -> asyncio.subprocess.Process:
    text = textwrap.dedent(_PROGRAM).format(crashes=crashes)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def test_a_signal_shows_the_stacks_of_threads_and_of_tasks_and_the_program_goes_on() -> None:
    process = await _started(crashes=False)
    assert process.stderr is not None
    for _ in range(2):
        process.send_signal(signal.SIGUSR1)
        found = (await process.stderr.readuntil(b"task patient waits in ")).decode()
        found += (await process.stderr.readline()).decode()
        assert "in stuck_thread" in found
        assert re.search(r"task patient waits in outer:\d+ > inner:\d+ > Event.wait:\d+$", found.strip())
    process.kill()
    await process.wait()


async def test_a_crash_in_a_library_leaves_the_stacks_of_the_threads() -> None:
    process = await _started(crashes=True)
    _, written = await process.communicate()
    assert process.returncode == -signal.SIGSEGV
    assert written.decode().startswith("Fatal Python error: Segmentation fault")
    assert " in main\n" in written.decode()
