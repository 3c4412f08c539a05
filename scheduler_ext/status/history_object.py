"""Keeps the history of the status page in a ConfigMap, for the extender's next pod (edge of the API server)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import CONFIG_MAPS

log = logging.getLogger(__name__)

KEY = "history"
LARGEST_BYTES = 256 * 1024
"""Twice as much as `Board.remembered` can be. What is longer is not ours, and is not read."""
WRITE_SECONDS = 300.0
"""The time between two writes, which only the leader makes."""
RETRY_SECONDS = 10.0
"""The time between two tries to read it, and between two looks of one that does not lead."""
END_SECONDS = 5.0
"""The longest time that the last write takes."""


class HistoryObject:
    """Reads the object, and writes it while this process leads. `recall` takes what was read and returns whether it
    could; `remembered` returns what is to be written, empty without any.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        place: str,
        recall: Callable[[bytes], Awaitable[bool]],
        remembered: Callable[[], Awaitable[bytes]],
        leads: Callable[[], bool],
    ) -> None:
        """Takes the place as `namespace/name`."""
        self._api = api
        self._namespace, _, self._name = place.partition("/")
        self._recall = recall
        self._remembered = remembered
        self._leads = leads
        self._problem = ""
        self._shows = False
        self._is_ours = False
        """False while another process may have stored what this one does not know."""
        self._written = b""

    async def run(self, write_seconds: float = WRITE_SECONDS, retry_seconds: float = RETRY_SECONDS) -> None:
        """Runs until cancelled, and then writes what is new. The page needs no history: a failure is only logged."""
        try:
            while True:
                await self._turn()
                await asyncio.sleep(write_seconds if self._is_ours else retry_seconds)
        finally:
            with suppress(ApiError, ApiUnreachable, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._write()

    async def _turn(self) -> None:
        leads = self._leads()
        # Until this process leads again another one writes.
        self._is_ours &= leads
        try:
            if self._is_ours:
                await self._write()
            elif leads or not self._shows:
                await self._read()
                self._is_ours = leads and self._shows
            self._problem = ""
        except (ApiError, ApiUnreachable) as error:
            if str(error) != self._problem:
                log.warning("the page's history in %s/%s: %s", self._namespace, self._name, error)
            self._problem = str(error)

    async def _read(self) -> None:
        """Raises ApiError or ApiUnreachable."""
        found = await self._api.get(CONFIG_MAPS, self._name, self._namespace)
        self._shows = await self._recall(found.data.get(KEY, "").encode()[:LARGEST_BYTES])

    async def _write(self) -> None:
        """Raises ApiError or ApiUnreachable."""
        content = await self._remembered() if self._is_ours else b""
        if not content or content == self._written or len(content) > LARGEST_BYTES:
            return
        body = {"data": {KEY: content.decode()}}
        await self._api.patch(CONFIG_MAPS, self._name, body, namespace=self._namespace)
        self._written = content
