"""Checks, as long as the daemon runs, what holds the containers of this node to their parts of GPUs."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from deviceplugin.changes import Changes
from deviceplugin.container.edits import HamiCore
from deviceplugin.container.hami_core import find_hami_core
from deviceplugin.container.limits import Backends, limits_of
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.own_threads import OwnThreads
from deviceplugin.settings import AgentSettings
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
        return limits_of(self._found, self._settings.limits, self._settings.allows_unheld)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            change = self._changes.next()
            hami_core = await self._thread.call(lambda: find_hami_core(self._settings.hook_path))
            if not await self._is_known():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):
                        await change.wait()
                continue
            found = Backends(hami_core=hami_core, no_driver=self.no_driver)
            if found != self._found:
                self._found = found
                self._report(found)
                self._changes.announce()
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def no_driver(self) -> str:
        """Returns why the driver holds no container that starts now, as a clause; empty if it does."""
        if Backend.DRIVER not in self._settings.limits:
            return "the setting limits of its daemon leaves it out"
        return self._driver.problem if self._by_slots() else "allocation is not by slots"

    async def _is_known(self) -> bool:
        """Tries the driver, and returns whether the result counts: its GPUs and the way of allocation are known. It is
        tried whatever the setting is: containers keep it that ran with it.
        """
        by_slots = self._by_slots()
        return await self._driver.look() if by_slots else by_slots is not None

    def _report(self, found: Backends) -> None:
        """Logs what has changed; the Node's event and `doctor` have what it means for pods."""
        requested = found.only(self._settings.limits)
        hami_core = requested.hami_core
        limits = limits_of(found, self._settings.limits, self._settings.allows_unheld)
        log.log(
            logging.INFO if limits.backends and not limits.allows_unheld else logging.WARNING,
            "limits are %s: the driver holds %s, HAMi-core %s",
            limits.value,
            f"nothing ({requested.no_driver})" if requested.no_driver else "memory",
            "memory and cores" if isinstance(hami_core, HamiCore) else f"nothing ({hami_core.problem})",
        )
