"""Checks, as long as the daemon runs, what holds the containers of this node to their parts of GPUs."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from deviceplugin.changes import Changes
from deviceplugin.container.edits import HamiCore, NoHamiCore
from deviceplugin.container.hami_core import find_hami_core
from deviceplugin.container.limits import Backends, limits_of
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.own_threads import OwnThreads
from deviceplugin.settings import AgentSettings, UnenforcedShares
from proto.annotations.node_limits import Backend, NodeLimits

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between checks, for the Node's annotation; the start of a container checks separately."""
_RETRY_SECONDS = 1.0
"""Seconds between checks while the driver has not answered: containers that start wait for it."""


class LimitsWatch:
    """`limits` is None before the first look. `by_slots` returns None until it is chosen how containers are served."""

    def __init__(
        self, settings: AgentSettings, driver: DriverLimits, changes: Changes, by_slots: Callable[[], bool | None]
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._changes = changes
        self._by_slots = by_slots
        self._thread = OwnThreads("hami-core")
        self._found: Backends | None = None

    @property
    def limits(self) -> NodeLimits | None:
        if self._found is None:
            return None
        return limits_of(self._found, self._settings.limits, self._settings.unenforced_shares)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            change = self._changes.next()
            hami_core = await self._thread.call(lambda: find_hami_core(self._settings.hook_path))
            if not await self._can_tell():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):
                        await change.wait()
                continue
            found = Backends(hami_core=hami_core, no_driver=self.no_driver)
            if found != self._found:
                self._report(found)
                self._found = found
                self._changes.announce()
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def no_driver(self) -> str:
        """Returns why the driver holds no container that starts now, as a clause; empty if it does."""
        if Backend.DRIVER not in self._settings.limits.backends:
            return "the setting limits of its daemon leaves it out"
        return self._driver.problem if self._by_slots() else "allocation is not by slots"

    async def _can_tell(self) -> bool:
        """Tries the driver, and returns whether the result counts: its GPUs and the way of allocation are known. It is
        tried whatever the setting is: containers keep it that ran with it.
        """
        by_slots = self._by_slots()
        return await self._driver.look() if by_slots else by_slots is not None

    def _report(self, found: Backends) -> None:
        """Logs what has changed."""
        before, requested = self._found, self._settings.limits
        there, was = found.there & requested.backends, None if before is None else before.there & requested.backends
        if Backend.DRIVER in there and (was is None or Backend.DRIVER not in was):
            log.info("the driver holds containers to their part of GPU memory")
        elif was is not None and Backend.DRIVER in was and Backend.DRIVER not in there:
            log.warning("the driver does not limit GPU memory any more, because %s", found.no_driver)
        elif was is None and requested.backends == {Backend.DRIVER} and Backend.DRIVER not in there:
            log.warning("limits is driver, but the driver limits no GPU memory, because %s", found.no_driver)
        if before is None or before.hami_core != found.hami_core:
            self._tell_hami_core(found.only(requested.backends).hami_core, by_driver=Backend.DRIVER in there)

    def _tell_hami_core(self, found: HamiCore | NoHamiCore, *, by_driver: bool) -> None:
        allowed = self._settings.unenforced_shares is UnenforcedShares.ALLOW
        if isinstance(found, HamiCore):
            log.info("HAMi-core enforces the shares of containers: %s", found.library)
            if allowed:
                log.warning(
                    "unenforced_shares allows parts of several GPUs in one container, which HAMi-core may not hold"
                )
            return
        install = "the chart's hamiCore.enabled installs HAMi-core, as does `topogpu-device-plugin install-hami-core`"
        if by_driver:
            log.info(
                "pods that request a part of a GPU's cores are %s, because %s",
                "unlimited" if allowed else "refused",
                found.problem,
            )
        elif allowed:
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
