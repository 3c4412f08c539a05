"""Probes the kube-scheduler beside us: kubelet learns with one request whether both are healthy.

A kube-scheduler renews its lease even if its extender hangs or crashes, and then no replica places pods. So its
liveness probe calls the extender, and the extender calls kube-scheduler. If either fails, kubelet restarts
kube-scheduler, and another replica gets the lease.
"""

import asyncio

import aiohttp

from program.tasks import Tasks

_ALLOWED = aiohttp.ClientTimeout(total=1.5)
"""Less than kubelet's own timeout."""
_SHOWN_BYTES = 300


class KubeScheduler:
    def __init__(self, healthz: str) -> None:
        """`healthz` is a URL on this host."""
        self._healthz = healthz
        self._tasks = Tasks()
        self._probing: asyncio.Task[str] | None = None

    async def problem(self) -> str:
        """Returns the problem in one sentence; empty while kube-scheduler is healthy. Callers at the same time share
        one request.
        """
        if self._probing is None or self._probing.done():
            self._probing = self._tasks.begin(self._probe())
        return await asyncio.shield(self._probing)

    async def end(self) -> None:
        await self._tasks.end()

    async def _probe(self) -> str:
        # It signed its certificate itself, and no other program answers at an address of this host.
        connector = aiohttp.TCPConnector(ssl=False)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=_ALLOWED) as http,
                http.get(self._healthz, allow_redirects=False) as answer,
            ):
                text = (await answer.content.read(_SHOWN_BYTES)).decode(errors="replace")
        except TimeoutError:
            return f"kube-scheduler does not answer within {_ALLOWED.total:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"kube-scheduler cannot be reached: {error}"
        return "" if answer.status == 200 else f"kube-scheduler answers {answer.status}: {' '.join(text.split())}"
