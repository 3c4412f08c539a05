"""Checks, as long as the daemon runs, what enforces the shares of this node's containers."""

import asyncio
import logging

from deviceplugin.changes import Changes
from deviceplugin.container.edits import HamiCore, NoHamiCore
from deviceplugin.container.hami_core import find_hami_core
from deviceplugin.container.limits import limits_of
from deviceplugin.own_threads import OwnThreads
from deviceplugin.settings import UnenforcedShares
from proto.annotations.node_limits import NodeLimits

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between checks, for the Node's annotation; the start of a container checks separately."""


class HamiCoreWatch:
    """`limits` is None before the first look."""

    def __init__(self, root: str, unenforced: UnenforcedShares, changes: Changes) -> None:
        self._root = root
        self._unenforced = unenforced
        self._changes = changes
        self._thread = OwnThreads("hami-core")
        self._found: HamiCore | NoHamiCore | None = None

    @property
    def limits(self) -> NodeLimits | None:
        return None if self._found is None else limits_of(self._found, self._unenforced)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            found = await self._thread.call(lambda: find_hami_core(self._root))
            if found != self._found:
                self._found = found
                _tell(found, self._unenforced)
                self._changes.announce()
            await asyncio.sleep(LOOK_SECONDS)


def _tell(found: HamiCore | NoHamiCore, unenforced: UnenforcedShares) -> None:
    if isinstance(found, HamiCore):
        log.info("HAMi-core enforces the shares of containers: %s", found.library)
        if unenforced is UnenforcedShares.ALLOW:
            log.warning("unenforced_shares allows parts of several GPUs in one container, which HAMi-core may not hold")
        return
    install = "the chart's hamiCore.enabled installs HAMi-core, as does `topogpu-device-plugin install-hami-core`"
    if unenforced is UnenforcedShares.ALLOW:
        log.warning(
            "nothing enforces the shares of containers, because %s, and unenforced_shares allows it: each of "
            "them can use all memory and cores of its GPUs; %s",
            *(found.problem, install),
        )
    else:
        log.warning(
            "pods that request a part of a GPU are refused here, because %s; whole GPUs are served; %s",
            *(found.problem, install),
        )
