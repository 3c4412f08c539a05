"""Python imports this at the start of the programs under test: SIGUSR2 makes them write how many tasks they have."""

import os
import signal


def _count(*_: object) -> None:
    import asyncio

    tasks = len(asyncio.all_tasks(asyncio.get_running_loop()))
    with open(f"{os.environ['FAULTS_TASKS']}/{os.getpid()}", "w") as file:
        file.write(str(tasks))


signal.signal(signal.SIGUSR2, _count)
