"""Calls an HTTP extender, and reads its replies as kube-scheduler reads them (edge)."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp

from simulation.moments import Moments

JsonObject = dict[str, Any]


class CallRefused(Exception):
    """The extender or the API server did not answer, or answered with an error; one sentence."""


class ExtenderCalls:
    """The calls of one scheduler. `moments` has the observers of every call, by its verb."""

    def __init__(self, url: str, http: Callable[[], aiohttp.ClientSession], timeout_seconds: float) -> None:
        self.moments = Moments[str]()
        self._url = url.rstrip("/")
        self._http = http
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def call(self, verb: str, body: JsonObject) -> JsonObject:
        url = f"{self._url}/{verb}"
        await self.moments.before(verb)
        try:
            async with self._http().post(url, json=body, timeout=self._timeout) as response:
                raw = await response.read()
                if response.status != 200:
                    raise CallRefused(f"failed {verb} with extender at URL {url}, code {response.status}")
                reply = json.loads(raw)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as e:
            raise CallRefused(f"failed {verb} with extender at URL {url}: {e or type(e).__name__}") from e
        if not isinstance(reply, dict):
            raise CallRefused(f"failed {verb} with extender at URL {url}: the reply is not a JSON object")
        await self.moments.after(verb)
        return reply
