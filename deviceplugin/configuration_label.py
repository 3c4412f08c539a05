"""Follows the Node's label that names a configuration: it checks a new one, then ends the daemon to restart with it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.own_threads import OwnThreads
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.objects import Notice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`name` is the configuration in use, empty for none."""

    name: str
    wanted: Callable[[Mapping[str, str]], str]
    """Returns the name in the Node's labels."""
    check: Callable[[str], str]
    """Returns what is wrong with a configuration, as a sentence; empty if it can be used. Blocks."""
    restart: Callable[[], None]


async def follow(own: OwnNode, changes: Changes, events: EventRecorder, choice: Choice) -> None:
    """Runs until cancelled by a restart. An unusable configuration leaves the old one in use."""
    thread = OwnThreads("configuration")
    async for name in changes.of(lambda: None if own.node is None else choice.wanted(own.node.metadata.labels)):
        if name is None or name == choice.name:
            continue
        problem = await thread.call(partial(choice.check, name))
        if problem:
            log.error("%s remains in use: %s", _called(choice.name), problem)
            message = f"{_called(choice.name)} remains in use: {problem}"
            events.record(own.reference(), Notice(reason="ConfigurationNotUsed", message=message, distinct=True))
            continue
        log.info("ending, to restart with %s, as node %s requires", _called(name), own.name)
        choice.restart()
        return


def _called(name: str) -> str:
    return f"configuration {name!r}" if name else "the configuration without a name"
