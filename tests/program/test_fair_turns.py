import asyncio

from program.shared_page import FairTurns


async def test_a_caller_that_asks_for_many_turns_delays_no_other_by_more_than_one() -> None:
    turns, order = FairTurns(per_second=1000, burst=1), list[str]()

    async def take(caller: str) -> None:
        await turns.take(caller)
        order.append(caller)

    await asyncio.gather(*(take(caller) for caller in "aaaabbc"))
    assert "".join(order) == "abcabaa"
    await turns.end()


async def test_turns_come_at_their_rate_after_those_that_may_be_taken_at_once() -> None:
    turns, loop = FairTurns(per_second=100, burst=5), asyncio.get_running_loop()
    began, taken = loop.time(), []
    for _ in range(15):
        await turns.take("a")
        taken.append(loop.time() - began)
    assert taken[-1] >= 0.1
    assert taken[4] < taken[-1] / 2


async def test_a_caller_that_gives_up_uses_no_turn() -> None:
    turns = FairTurns(per_second=0.001, burst=2)
    await turns.take("a")
    given_up = asyncio.create_task(turns.take("b"))
    await asyncio.sleep(0)
    given_up.cancel()
    async with asyncio.timeout(10):
        await turns.take("c")
    await turns.end()
