"""Sends Bindings, and knows whether the API server may still carry one out without an answer."""

import asyncio
from collections.abc import Callable
from math import inf

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ServerError
from proto.kubernetes.objects import Binding
from scheduler_ext.settings import SLACK_SECONDS


class BindingSender:
    def __init__(self, api: ApiServer, seconds: float, monotonic: Callable[[], float], *, left: bool = False) -> None:
        """Gives up each Binding after `seconds`. `left` is true if the process before had sent some and is gone: the
        API server may carry them out as if they had been given up now.
        """
        self.seconds = min(api.timeout_seconds, seconds)
        self._api = api
        self._monotonic = monotonic
        self._on_their_way = 0
        self._answered = asyncio.Event()
        """The event is set whenever no Binding is on its way."""
        self._answered.set()
        self._open_until = self._given_up() if left else -inf
        """The end of the time in which the API server may carry out a Binding without an answer."""

    async def send(self, binding: Binding) -> None:
        """Sends a Binding. It is given up when the API server gives it up too, so that it cannot be carried out later.

        Raises ApiError or ApiUnreachable.
        """
        settled = False
        self._on_their_way += 1
        self._answered.clear()
        try:
            await self._api.bind(binding, within_seconds=self.seconds)
            settled = True
        except ServerError:
            raise
        except ApiError:
            settled = True
            raise
        finally:
            if not settled:
                self._open_until = self._given_up()
            self._on_their_way -= 1
            if not self._on_their_way:
                self._answered.set()

    def _given_up(self) -> float:
        """Returns until when the API server may carry out a Binding that is given up now, in monotonic seconds."""
        return self._monotonic() + self.seconds + SLACK_SECONDS

    async def written(self) -> bool:
        """Waits until no Binding is on its way. Returns whether none that was sent can still be carried out."""
        await self._answered.wait()
        return self._monotonic() >= self._open_until
