"""Tasks with a parent, and that no other task is begun."""

import ast
import asyncio
import itertools
from pathlib import Path

import pytest

from program.tasks import Shared, Tasks, until_first

ROOT = Path(__file__).parents[2]
PRODUCT = ("program", "proto", "deviceplugin", "scheduler_ext", "kubectl_topogpu")


async def fail() -> None:
    raise ValueError("it failed")


async def test_at_the_end_work_has_its_grace_and_is_then_cancelled() -> None:
    tasks, go = Tasks(), asyncio.Event()
    quick, stuck = tasks.begin(go.wait()), tasks.begin(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(go.set)
    await tasks.end(grace_seconds=0.01)
    assert quick.result() is True
    assert stuck.cancelled()


async def test_a_task_that_is_cancelled_as_it_begins_cleans_up_all_the_same() -> None:
    tasks, cleaned = Tasks(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    tasks.begin(work())
    await tasks.end()
    assert cleaned.is_set()


async def test_a_failure_is_for_the_caller_that_awaits_it() -> None:
    tasks = Tasks()
    task = tasks.begin(fail())
    await tasks.end(grace_seconds=60)
    with pytest.raises(ValueError, match="it failed"):
        await task


async def test_callers_that_come_while_work_is_under_way_share_the_next() -> None:
    numbers, began, go = itertools.count(1), asyncio.Event(), asyncio.Event()

    async def work() -> int:
        number = next(numbers)
        began.set()
        await go.wait()
        return number

    shared, callers = Shared(work), Tasks()
    first = callers.begin(shared.result())
    await began.wait()
    others = [callers.begin(shared.result()) for _ in range(3)]
    go.set()
    assert [await first, *[await other for other in others]] == [1, 2, 2, 2]
    await shared.end()


async def test_an_end_that_is_cancelled_itself_has_cancelled_its_tasks() -> None:
    tasks = Tasks()
    task = tasks.begin(asyncio.sleep(100))
    end = asyncio.create_task(tasks.end())
    await asyncio.sleep(0)
    end.cancel()
    await asyncio.wait([task, end], timeout=10)
    assert task.cancelled()


async def test_the_first_to_end_ends_the_others() -> None:
    ended = asyncio.Event()

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await until_first(asyncio.sleep(0), other())
    assert ended.is_set()
    with pytest.raises(ValueError, match="it failed"):
        await until_first(other(), fail())


def begins_tasks(tree: ast.AST) -> bool:
    """By asyncio itself or by its loop; a TaskGroup and `Tasks` end what they begin."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("create_task", "ensure_future")
        and ast.unparse(node.value) in ("asyncio", "loop", "asyncio.get_running_loop()")
        for node in ast.walk(tree)
    )


def test_every_task_has_a_parent() -> None:
    files = [path for room in PRODUCT for path in (ROOT / room).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if begins_tasks(ast.parse(path.read_text()))}
    assert found == {"program/tasks.py"}
