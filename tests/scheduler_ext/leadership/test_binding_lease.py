"""The extenders' own Lease where its watch says nothing more, as over a dead connection."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from proto.kubernetes.client import ApiServer
from scheduler_ext.leadership.binding_lease import BindingLease
from scheduler_ext.settings import LeaseSettings
from simulation.apiserver import EmbeddedApiServer
from tests.polling import until

LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "sched-binding", "namespace": "kube-system"},
    "spec": {"holderIdentity": "host-2_b", "leaseDurationSeconds": 1, "renewTime": "2030-01-01T00:00:00.000000Z"},
}


def forgetting() -> None:
    """Nothing was sent here."""


@asynccontextmanager
async def once_seen(server: EmbeddedApiServer, folder: Path) -> AsyncIterator[BindingLease]:
    """As it was listed, free to be taken, and not watched."""
    (folder / "kubeconfig").write_text(server.kubeconfig())
    api = await ApiServer.connect(str(folder / "kubeconfig"))
    lease = BindingLease(
        api=api,
        settings=LeaseSettings(elects=True, name="sched", namespace="kube-system", identity="host-1", process="a"),
        write_seconds=1.0,
        changed=lambda: None,
        now=lambda: datetime(2030, 1, 1, 1, tzinfo=UTC),
        monotonic=time.monotonic,
    )

    async def is_free() -> bool:
        return lease.held_for() == 0

    following = asyncio.create_task(lease.follow())
    try:
        await until(is_free)
        following.cancel()
        yield lease
    finally:
        await api.close()


@pytest.mark.parametrize("change", ["written", "deleted", "created"])
async def test_what_became_of_it_is_looked_up(change: str, tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        if change != "created":
            server.create(LEASE)
        async with once_seen(server, tmp_path) as lease:
            match change:
                case "written":
                    note: dict[str, Any] = {"metadata": {"annotations": {"by": "hand"}}}
                    server.patch("leases", "sched-binding", note, namespace="kube-system")
                case "deleted":
                    server.delete("leases", "sched-binding", namespace="kube-system")
                case _:
                    server.create(LEASE | {"spec": {}})
            async with asyncio.timeout(30):
                assert await lease.take(forgetting, settled=True)
            assert lease.is_held()


async def test_one_that_another_process_took_is_left_to_it(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        server.create(LEASE)
        async with once_seen(server, tmp_path) as lease:
            taken = {"spec": {"holderIdentity": "host-3_c", "leaseDurationSeconds": 60}}
            server.patch("leases", "sched-binding", taken, namespace="kube-system")
            async with asyncio.timeout(30):
                assert not await lease.take(forgetting, settled=True)
            assert lease.holder() == "host-3_c"
            assert (lease.held_for() or 0) > 30


async def test_one_that_another_process_took_is_not_said_to_name_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedApiServer() as server:
        server.create(LEASE)
        async with once_seen(server, tmp_path) as lease:
            assert await lease.take(forgetting, settled=True)
            taken = {"spec": {"holderIdentity": "host-3_c", "leaseDurationSeconds": 60}}
            server.patch("leases", "sched-binding", taken, namespace="kube-system")
            async with asyncio.timeout(30):
                await lease.release()
            assert lease.holder() == "host-3_c"
            assert caplog.messages == []


@pytest.mark.parametrize("ended", ["released", "deleted"])
async def test_another_process_that_had_it_is_noticed_although_the_watch_did_not_show_it(
    ended: str, tmp_path: Path
) -> None:
    async with EmbeddedApiServer() as server:
        server.create(LEASE)
        async with once_seen(server, tmp_path) as lease:
            assert await lease.take(forgetting, settled=True)
            for holder in ("host-3_c", None):
                server.patch("leases", "sched-binding", {"spec": {"holderIdentity": holder}}, namespace="kube-system")
            if ended == "deleted":
                server.delete("leases", "sched-binding", namespace="kube-system")
            noticed: list[bool] = []
            assert not await lease.take(lambda: noticed.append(lease.is_held()), settled=False)
            assert noticed == []
            assert await lease.take(lambda: noticed.append(lease.is_held()), settled=True)
            assert noticed == [False]
            assert lease.is_held()
