"""Two extenders, each beside a kube-scheduler that believes to lead, and the Lease that decides it (edge)."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from random import Random
from socket import gethostname

from simulation.apiserver.errors import ApiRefusal
from simulation.cluster import SimulatedCluster, start_extender
from simulation.kube_scheduler import KubeSchedulerStandIn
from simulation.workload import SCHEDULER_NAME

_NAME, _NAMESPACE = "soak-kube-scheduler", "kube-system"
LEASE_OPTIONS = (
    *("--leader-elect", "true", "--leader-elect-resource-name", _NAME),
    *("--leader-elect-resource-namespace", _NAMESPACE),
)
_OTHER_HOST = "soak-other-host"
_RENEW_SECONDS = 2.0
_LASTS_SECONDS = 15


def may_name_hosts() -> bool:
    """Returns whether a program may get a host name of its own, which each replica needs: as root."""
    return os.geteuid() == 0


class Leaders:
    """`async with Leaders(cluster, now):` runs the second extender, at the address `second`, and renews the Lease."""

    def __init__(self, cluster: SimulatedCluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._holder = f"{gethostname()}_1"

    async def __aenter__(self) -> "Leaders":
        metadata = {"name": _NAME, "namespace": _NAMESPACE}
        spec = {"holderIdentity": self._holder, "leaseDurationSeconds": _LASTS_SECONDS, "renewTime": self._stamp()}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        self._cluster.server.create(lease)
        under = ("unshare", "--uts", "sh", "-c", f'hostname {_OTHER_HOST} && exec "$@"', "sh")
        _, self.second = await start_extender(self._cluster, "extender-2", under=under)
        self._scheduler = KubeSchedulerStandIn(self._cluster.api, self.second, SCHEDULER_NAME)
        await self._scheduler.__aenter__()
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._renewing.cancel()
        with suppress(asyncio.CancelledError):
            await self._renewing
        await self._scheduler.__aexit__()

    def change(self, rng: Random) -> None:
        """Gives the Lease to the kube-scheduler of one of the hosts, or to another process of the same host."""
        self._holder = f"{rng.choice((gethostname(), _OTHER_HOST))}_{rng.choice((1, 2))}"
        self._write()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            self._write()

    def _write(self) -> None:
        """A fault that was injected may refuse it: the next renewal makes up for it."""
        spec = {"holderIdentity": self._holder, "renewTime": self._stamp()}
        with suppress(ApiRefusal):
            self._cluster.server.patch("leases", _NAME, {"spec": spec}, namespace=_NAMESPACE)

    def _stamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
