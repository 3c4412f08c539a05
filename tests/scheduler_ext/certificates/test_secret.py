"""A certificate of our own, before an embedded API server."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from proto.kubernetes.client import ApiServer
from scheduler_ext.certificates.secret import CertificateSecret, SecretPlace
from scheduler_ext.certificates.tls import ServingTls
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.scheduler_ext.certificates.handshakes import HOST, served, trusts

NOW = datetime.now(UTC).replace(microsecond=0)  # noqa: TID251 - real handshakes look at the real clock
CHECK, SETTLE, RETRY = 60.0, 5.0, 5.0


@dataclass
class Replica:
    """One process with its own listener, and a clock to turn."""

    api: ApiServer
    names: frozenset[str] = frozenset({HOST})
    now: datetime = NOW
    tls: ServingTls = field(default_factory=ServingTls)

    def __post_init__(self) -> None:
        place = SecretPlace(namespace="ns", name="cert", names=self.names)
        self.refresh = CertificateSecret(api=self.api, place=place, tls=self.tls, now=lambda: self.now).refresh

    async def shows(self, authorities: bytes) -> bool:
        async with served(self.tls.context) as port:
            return await trusts(authorities, port)


@dataclass
class Cluster:
    server: EmbeddedApiServer
    api: ApiServer

    def stored(self, key: str) -> bytes:
        secret = self.server.store.get("secrets", "ns", "cert")
        assert secret is not None
        return base64.b64decode(secret["data"][key])

    def bundles(self) -> list[bytes]:
        """What the API server trusts, of each webhook."""
        found = self.server.store.get("mutatingwebhookconfigurations", "", "cert")
        assert found is not None
        return [base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in found["webhooks"]]

    def writes(self) -> list[tuple[str, str]]:
        return [(r.verb, r.resource) for r in self.server.requests if r.verb in ("create", "patch")]


CONFIGURATION: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "cert"},
    "webhooks": [
        {"name": "a", "clientConfig": {"service": {"name": "s"}}, "unknownField": 1},
        {"name": "b", "clientConfig": {"service": {"name": "s"}, "caBundle": "b2xk"}},
    ],
}


@asynccontextmanager
async def cluster(tmp_path: Path, *, configured: bool = True) -> AsyncIterator[Cluster]:
    async with EmbeddedApiServer() as server:
        server.create({"kind": "Namespace", "metadata": {"name": "ns"}})
        if configured:
            server.create(CONFIGURATION)
        config = tmp_path / "config"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config), timeout_seconds=2.0)
        try:
            yield Cluster(server, api)
        finally:
            await api.close()


async def test_the_first_look_makes_stores_and_shows_it_and_the_api_server_trusts_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        ours = Replica(found.api)
        assert await ours.refresh() == SETTLE
        assert await ours.refresh() == CHECK
        assert found.bundles() == [found.stored("ca.crt")] * 2
        assert await ours.shows(found.bundles()[0])
        assert found.writes() == [("create", "secrets"), ("patch", "mutatingwebhookconfigurations")]
        stored = found.server.store.get("mutatingwebhookconfigurations", "", "cert")
        assert stored is not None
        assert stored["webhooks"][0]["unknownField"] == 1
        secret = found.server.store.get("secrets", "ns", "cert")
        assert secret is not None
        assert secret["type"] == "kubernetes.io/tls"


async def test_looking_again_writes_nothing_and_a_restart_shows_the_same(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        await Replica(found.api).refresh()
        before = found.writes()
        restarted = Replica(found.api)
        assert [await restarted.refresh(), await restarted.refresh()] == [CHECK, CHECK]
        assert found.writes() == before
        assert await restarted.shows(found.bundles()[0])


async def test_replicas_that_start_together_agree_on_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        replicas = [Replica(found.api) for _ in range(4)]
        for _ in range(2):
            await asyncio.gather(*(each.refresh() for each in replicas))
        assert found.writes().count(("create", "secrets")) == 4
        assert [await each.refresh() for each in replicas] == [CHECK] * 4
        assert found.bundles() == [found.stored("ca.crt")] * 2
        assert found.bundles()[0].count(b"BEGIN") == 1
        assert all([await each.shows(found.bundles()[0]) for each in replicas])


async def test_replicas_that_renew_together_agree_on_one_and_are_trusted_throughout(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        old, new = Replica(found.api, now=NOW - timedelta(days=300)), Replica(found.api, now=NOW - timedelta(days=300))
        for each in (old, new, old, new):
            await each.refresh()
        first = found.stored("tls.crt")
        old.now = new.now = NOW
        # Both have read before either has written.
        late = Fault(verbs=frozenset({"patch"}), resources=frozenset({"secrets"}), latency_seconds=0.3, times=1)
        found.server.inject(late)
        for _ in range(3):
            await asyncio.gather(old.refresh(), new.refresh())
            assert await old.shows(found.bundles()[0])
            assert await new.shows(found.bundles()[0])
        assert found.stored("tls.crt") != first
        assert found.bundles()[0].count(b"BEGIN") == 2
        assert found.writes().count(("patch", "secrets")) == 2


async def test_a_new_certificate_is_shown_one_look_after_it_came_to_be_trusted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        ours = Replica(found.api, now=NOW - timedelta(days=300))
        await ours.refresh()
        old = found.bundles()[0]
        ours.now = NOW
        assert await ours.refresh() == SETTLE
        assert await ours.shows(old)
        assert await ours.refresh() == CHECK
        assert not await ours.shows(old)
        assert await ours.shows(found.bundles()[0])


async def test_while_the_configuration_is_missing_the_old_certificate_stays(tmp_path: Path) -> None:
    async with cluster(tmp_path, configured=False) as found:
        ours = Replica(found.api)
        assert await ours.refresh() == RETRY
        assert await ours.shows(found.stored("ca.crt"))
        found.server.create(CONFIGURATION)
        assert [await ours.refresh(), await ours.refresh()] == [SETTLE, CHECK]
        assert found.bundles() == [found.stored("ca.crt")] * 2


async def test_a_bundle_that_somebody_overwrote_is_put_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        ours = Replica(found.api)
        await ours.refresh()
        found.server.patch("mutatingwebhookconfigurations", "cert", {"webhooks": CONFIGURATION["webhooks"]})
        assert await ours.refresh() == SETTLE
        assert found.bundles() == [found.stored("ca.crt")] * 2


@pytest.mark.parametrize("data", [{}, {"tls.crt": "IQ==", "tls.key": "IQ=="}, {"tls.crt": "b2xk", "tls.key": "b2xk"}])
async def test_a_secret_without_a_usable_certificate_is_filled(tmp_path: Path, data: dict[str, str]) -> None:
    async with cluster(tmp_path) as found:
        secret = {"kind": "Secret", "metadata": {"name": "cert", "namespace": "ns"}, "data": {**data, "mine": "eA=="}}
        found.server.create(secret)
        ours = Replica(found.api)
        assert [await ours.refresh(), await ours.refresh()] == [SETTLE, CHECK]
        assert await ours.shows(found.bundles()[0])
        assert found.stored("mine") == b"x"


async def test_two_versions_with_different_names_settle_on_both(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        old, new = Replica(found.api), Replica(found.api, names=frozenset({"new.ns.svc"}))
        for _ in range(3):
            await old.refresh()
            await new.refresh()
        before = found.writes()
        assert [await old.refresh(), await new.refresh()] == [CHECK, CHECK]
        assert found.writes() == before
        async with served(old.tls.context) as port:
            assert await trusts(found.bundles()[0], port, "new.ns.svc")


async def test_an_api_server_that_is_away_is_told_once_and_the_certificate_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as found:
        ours = Replica(found.api)
        await ours.refresh()
        await found.server.go_offline()
        assert [await ours.refresh(), await ours.refresh()] == [RETRY, RETRY]
        assert await ours.shows(found.bundles()[0])
        assert [r.getMessage()[:47] for r in caplog.records if r.levelname == "WARNING"] == [
            "the webhook's certificate cannot be kept: the A"
        ]
