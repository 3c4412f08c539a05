"""Who searches long takes turns with others."""

import asyncio
from collections.abc import Iterator

import pytest

from scheduler_ext.verbs.turns import AHEAD_SECONDS, SHARE, SearchTurns


class Searches:
    """`seconds` is the clock; each step takes a hundredth. `made` are the steps, by name of the search."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.made: list[str] = []
        self.turns = SearchTurns(lambda: self.seconds)

    def steps(self, name: str, number: int) -> Iterator[None]:
        """The last one ends the search."""
        for each in range(number):
            self.made.append(name)
            self.seconds += 0.01
            if each < number - 1:
                yield

    async def take(self, name: str, number: int) -> None:
        await self.turns.take(name.partition("/")[0], self.steps(name, number))


async def test_namespaces_take_turns_and_in_each_the_first_comes_first() -> None:
    found = Searches()
    asked = [found.take("a/1", 4), found.take("a/2", 2), found.take("a/3", 2), found.take("b/1", 3), found.take("c", 2)]
    await asyncio.gather(*asked)
    assert found.made[:5] == ["a/1", "a/2", "a/3", "b/1", "c"]
    assert found.made[5:] == ["a/1", "b/1", "c", "a/1", "b/1", "a/1", "a/2", "a/3"]


async def test_a_search_of_one_step_waits_for_nobody_and_others_make_one_step_each_time_round() -> None:
    found = Searches()
    waiting = [asyncio.create_task(found.take(f"n{number}", 10)) for number in range(30)]
    await asyncio.sleep(0)
    for _ in range(5):
        before = len(found.made)
        await found.take("usual", 1)
        assert found.made[before:] == ["usual"]
        await asyncio.sleep(0)
        assert len(found.made) <= before + 2
    await asyncio.gather(*waiting)


async def test_a_namespace_that_had_its_share_makes_one_step_a_search_until_the_others_had_theirs() -> None:
    found = Searches()
    await found.take("a/1", 1000)
    assert len(found.made) == pytest.approx(100 * AHEAD_SECONDS / (1 - SHARE), abs=2)
    found.made.clear()
    await found.take("a/2", 1000)
    await found.take("b", 20)
    assert found.made == ["a/2", *["b"] * 20]
    found.seconds += 0.1
    found.made.clear()
    await found.take("a/3", 1000)
    assert len(found.made) == pytest.approx(100 * SHARE * 0.3 / (1 - SHARE), abs=4)


async def test_a_search_that_fails_tells_who_waits_and_one_that_nobody_waits_for_is_left() -> None:
    found = Searches()

    def failing() -> Iterator[None]:
        yield
        raise ValueError("no search")

    left = asyncio.create_task(found.take("b", 10))
    failed = asyncio.create_task(found.turns.take("c", failing()))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(ValueError, match="no search"):
        await failed
    await found.take("a", 3)
    assert found.made.count("b") <= 2
    assert found.made.count("a") == 3
