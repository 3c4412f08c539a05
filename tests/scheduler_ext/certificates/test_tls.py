"""Real handshakes before and after certificates change."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scheduler_ext.certificates.issue import Issued, issue
from scheduler_ext.certificates.tls import CertificateFiles, KeyPair, ServingTls, UnusableKeyPair
from tests.scheduler_ext.certificates.handshakes import HOST, client_identity, served, trusts

NOW = datetime.now(UTC)  # noqa: TID251 - real handshakes look at the real clock
NAMES = frozenset({HOST, "topogpu.ns.svc"})
OLD, NEW = issue(NAMES, NOW), issue(NAMES, NOW)


def pair(issued: Issued) -> KeyPair:
    return KeyPair(issued.certificate, issued.key)


async def test_a_listener_without_a_certificate_refuses_and_goes_on_once_it_has_one() -> None:
    tls = ServingTls()
    async with served(tls.context) as port:
        assert not await trusts(OLD.authorities, port)
        assert not tls.ready
        assert tls.use(pair(OLD))
        assert tls.ready
        assert await trusts(OLD.authorities, port)
        assert await trusts(OLD.authorities, port, "topogpu.ns.svc")
        assert not await trusts(OLD.authorities, port, "other.ns.svc")


async def test_the_next_handshake_shows_the_new_certificate() -> None:
    tls = ServingTls()
    tls.use(pair(OLD))
    async with served(tls.context) as port:
        assert tls.use(pair(NEW))
        assert not tls.use(pair(NEW))
        assert await trusts(NEW.authorities, port)
        assert not await trusts(OLD.authorities, port)
        assert await trusts(NEW.authorities + OLD.authorities, port)
        assert await trusts(OLD.authorities + NEW.authorities, port)


async def test_with_a_client_authority_only_its_clients_are_answered(tmp_path: Path) -> None:
    (authority, ours), (_, strangers) = client_identity(NOW), client_identity(NOW)
    for name, pem in (("ca.crt", authority), ("ours.pem", ours), ("strangers.pem", strangers)):
        (tmp_path / name).write_bytes(pem)
    tls = ServingTls(tmp_path / "ca.crt")
    tls.use(pair(OLD))
    async with served(tls.context) as port:
        assert await trusts(OLD.authorities, port, shows=tmp_path / "ours.pem")
        assert not await trusts(OLD.authorities, port, shows=tmp_path / "strangers.pem")
        assert not await trusts(OLD.authorities, port)


def test_authorities_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(UnusableKeyPair, match=r"ca\.crt holds no certificate authority in PEM"):
        ServingTls(tmp_path / "ca.crt")
    with pytest.raises(UnusableKeyPair, match=r"none cannot be read: no such file or directory"):
        ServingTls(tmp_path / "none")


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (KeyPair(NEW.certificate, OLD.key), "key values mismatch"),
        (KeyPair(b"", b""), "not PEM of a certificate and its unencrypted key"),
        (KeyPair(NEW.certificate, b"garbage"), "not PEM of a certificate and its unencrypted key"),
        (KeyPair(NEW.certificate[:200], NEW.key), "not PEM of a certificate and its unencrypted key"),
    ],
)
async def test_a_broken_pair_leaves_the_one_before(broken: KeyPair, problem: str) -> None:
    tls = ServingTls()
    tls.use(pair(OLD))
    with pytest.raises(UnusableKeyPair, match=problem):
        tls.use(broken)
    async with served(tls.context) as port:
        assert await trusts(OLD.authorities, port)


async def test_files_that_change_are_read_again_and_a_broken_pair_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    tls = ServingTls()
    files = CertificateFiles(certificate, key, tls)
    with pytest.raises(UnusableKeyPair, match=r"tls\.crt cannot be read: no such file or directory"):
        files.load()
    certificate.write_bytes(OLD.certificate)
    key.write_bytes(OLD.key)
    files.load()
    async with served(tls.context) as port:
        assert await trusts(OLD.authorities, port)
        certificate.write_bytes(NEW.certificate)
        with caplog.at_level(logging.WARNING):
            assert [await files.refresh(), await files.refresh()] == [10.0, 10.0]
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
            f"{certificate}, {key}: certificate and key cannot be used: key values mismatch; "
            "the previous certificate is still served"
        ]
        assert await trusts(OLD.authorities, port)
        key.write_bytes(NEW.key)
        await files.refresh()
        assert await trusts(NEW.authorities, port)
