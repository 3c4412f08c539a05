"""Runs a listener on its own event loop and thread, so that kube-scheduler never waits for it (edge).

Python switches threads after half a millisecond (sys.setswitchinterval of `serve`), an event loop only after a whole
answer. And TLS, the main cost of a flood, runs outside Python's lock.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from threading import Thread


@asynccontextmanager
async def in_own_thread(listening: Callable[[], AbstractAsyncContextManager[str]], name: str) -> AsyncIterator[str]:
    """Yields and raises what `listening` does. `name` is the thread's."""
    began: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def listen() -> None:
        end = asyncio.Event()
        try:
            async with listening() as value:
                began.set_result((value, asyncio.get_running_loop(), end))
                await end.wait()
        except BaseException as error:
            if began.done():
                raise
            began.set_exception(error)

    thread = Thread(target=lambda: asyncio.run(listen()), name=name, daemon=True)
    thread.start()
    value, loop, end = await asyncio.wrap_future(began)
    try:
        yield value
    finally:
        # The loop may have ended already.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(end.set)
        await asyncio.to_thread(thread.join)
