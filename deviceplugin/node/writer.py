"""The one loop that writes the Node: it patches a part that differs, and does nothing otherwise (edge)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.node.desired import Desired, NodePatch, patch_of
from deviceplugin.node.pace import (
    AwaitChange,
    AwaitReturn,
    Looked,
    NodePace,
    Pause,
    Taken,
    Unreachable,
    Write,
    WriteRefused,
    step,
)
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict
from proto.kubernetes.objects import Node

log = logging.getLogger(__name__)

_UNHURRIED = NodePace()


async def _nothing(_: Node) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """One source of what the Node should have. `name` is for logs, and unique."""

    name: str
    desired: Callable[[Node, datetime], Desired | None]
    """Returns None while nothing is known: the Node stays as it is."""
    look: Callable[[Node], Awaitable[None]] = _nothing
    """Called before: reads in a thread what `desired` needs of the host's files."""
    reported: Callable[[bool], None] = lambda _: None
    """Called after each patch with whether the API server took it, but not after a conflict."""


class NodeWriter:
    def __init__(
        self,
        own: OwnNode,
        changes: Changes,
        contributors: Sequence[Contributor],
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._own = own
        self._changes = changes
        self._contributors = {each.name: each for each in contributors}
        self._now = now

    async def run(self, pace: NodePace = _UNHURRIED) -> None:
        """Runs until cancelled."""
        while True:
            change, returned = self._changes.next(), self._own.returns.next()
            patches, again_in = await self._look()
            pace, command = step(pace, Looked(tuple(patches), again_in), time.monotonic())
            match command:
                case Write(name):
                    answer = await self._write(self._contributors[name], patches[name])
                    pace, command = step(pace, answer, time.monotonic())
                case AwaitChange(seconds):
                    await _wait(change, seconds)
            match command:
                case Pause(seconds) if seconds:
                    await asyncio.sleep(seconds)
                case AwaitReturn(seconds):
                    await _wait(returned, seconds)

    async def _look(self) -> tuple[Mapping[str, NodePatch], float | None]:
        """Returns the patches that are due, by contributor, and the seconds until the next look."""
        if (node := self._own.node) is not None:
            for contributor in self._contributors.values():
                await contributor.look(node)
        # It may have changed meanwhile.
        node, now = self._own.node, self._now()
        patches: dict[str, NodePatch] = {}
        again: list[float] = []
        for name, contributor in self._contributors.items():
            desired = None if node is None else contributor.desired(node, now)
            if node is None or desired is None:
                continue
            if desired.again_in is not None:
                again.append(desired.again_in.total_seconds())
            if (patch := patch_of(node, desired, now)) is not None:
                patches[name] = patch
        return patches, min(again, default=None)

    async def _write(self, contributor: Contributor, patch: NodePatch) -> Taken | WriteRefused | Unreachable:
        name, node = contributor.name, self._own.name
        try:
            await (self._own.patch_status if patch.of_status else self._own.patch_node)(patch.body)
        except Conflict:
            log.debug("another program wrote node %s before %s were written; reading again", node, name)
            return WriteRefused(name)
        except (ApiError, ApiUnreachable) as error:
            log.warning("cannot write %s of node %s: %s", name, node, error)
            contributor.reported(False)
            return WriteRefused(name) if isinstance(error, ApiError) else Unreachable()
        log.info("reported %s of node %s", name, node)
        contributor.reported(True)
        return Taken(name)


async def _wait(change: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await change.wait()
    except TimeoutError:
        return
