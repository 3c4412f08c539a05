import asyncio
import subprocess
import sys
import threading

import pytest

from deviceplugin.own_threads import OwnThreads


async def test_every_call_runs_on_the_same_thread_one_after_the_other() -> None:
    thread = OwnThreads("nvml")
    names = await asyncio.gather(*(thread.call(lambda: threading.current_thread().name) for _ in range(5)))
    assert names == ["nvml"] * 5


async def test_a_failure_belongs_to_whoever_asked() -> None:
    thread = OwnThreads("nvml")
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    assert await thread.call(lambda: "still there") == "still there"


async def test_a_call_that_was_given_up_before_it_began_never_runs() -> None:
    thread, gate, ran = OwnThreads("nvml"), threading.Event(), list[str]()
    first = asyncio.create_task(thread.call(gate.wait))
    second = asyncio.create_task(thread.call(lambda: ran.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await first
    await thread.call(lambda: ran.append("third"))
    assert ran == ["third"]


def test_a_driver_that_hangs_keeps_no_one_from_leaving() -> None:
    script = """
import asyncio, threading
from deviceplugin.own_threads import OwnThreads
async def main():
    try:
        async with asyncio.timeout(0.1):
            await OwnThreads("nvml").call(threading.Event().wait)
    except TimeoutError:
        print("gave up")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "gave up\n"
