import asyncio
import subprocess
import sys
import threading

from deviceplugin.own_threads import OwnThreads
from tests.polling import until


async def test_so_many_calls_run_at_a_time_and_no_more() -> None:
    threads, gate, began = OwnThreads("t", most=2), threading.Event(), list[int]()

    def work(number: int) -> None:
        began.append(number)
        gate.wait()

    calls = [asyncio.create_task(threads.call(lambda number=number: work(number))) for number in range(5)]  # type: ignore[misc]
    await until(lambda: len(began) == 2)
    assert sum(thread.name == "t" for thread in threading.enumerate()) == 2
    gate.set()
    await asyncio.gather(*calls)
    assert sorted(began) == [0, 1, 2, 3, 4]


async def test_what_hangs_for_one_owner_holds_up_no_other() -> None:
    gate = threading.Event()
    hanging = [asyncio.create_task(OwnThreads("disk").call(gate.wait)) for _ in range(40)]
    assert await OwnThreads("other").call(lambda: "done") == "done"
    assert await asyncio.to_thread(lambda: "done") == "done"
    gate.set()
    await asyncio.gather(*hanging)


def test_a_process_whose_pool_hangs_ends_all_the_same() -> None:
    program = """
import asyncio, threading
from deviceplugin.own_threads import UnjoinedExecutor
async def main():
    asyncio.get_running_loop().set_default_executor(UnjoinedExecutor(2))
    assert await asyncio.to_thread(int, "7") == 7
    hanging = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
    await asyncio.sleep(0.1)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
