"""The certificate that a TLS listener shows, also from files that another program writes, for example cert-manager
(edge). It can be replaced while the listener is open.
"""

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM of a certificate and its key. The certificate comes with those between it and its authority."""

    certificate: bytes
    key: bytes


class UnusableKeyPair(Exception):
    """Files or texts do not hold a certificate with its key. The message is one sentence."""


def read_key_pair(certificate: Path, key: Path) -> KeyPair:
    """Reads the pair from two files. Raises UnusableKeyPair."""
    try:
        return KeyPair(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise UnusableKeyPair(f"{error.filename} cannot be read: {(error.strerror or '').lower()}") from error


class ServingTls:
    """`context` is for a listener. Every handshake shows the last pair given to `use`; without one it fails."""

    def __init__(self, client_ca: Path | None = None) -> None:
        """Returns TLS. With `client_ca` (PEM of authorities), only clients with a certificate of theirs get an answer.

        Raises UnusableKeyPair.
        """
        self._client_ca = client_ca
        self.context = self._context()
        self.context.sni_callback = self._choose
        self._chosen: ssl.SSLContext | None = None
        self._pair: KeyPair | None = None
        self._others: list[ServingTls] = []

    def for_any_client(self) -> "ServingTls":
        """Returns TLS for another listener. It serves the same pairs, and requires no certificate of clients."""
        other = ServingTls()
        if self._pair is not None:
            other.use(self._pair)
        self._others.append(other)
        return other

    @property
    def ready(self) -> bool:
        return self._chosen is not None

    def use(self, pair: KeyPair) -> bool:
        """Serves this pair. Returns whether it differs from the one before. Raises UnusableKeyPair, and the old pair
        stays.
        """
        if pair == self._pair:
            return False
        context = self._context()
        # A new context: one that failed half-way must not serve.
        _load(context, pair)
        self._chosen, self._pair = context, pair
        for other in self._others:
            other.use(pair)
        return True

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _trust(context, self._client_ca)
        return context

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> int | None:
        # Called for every handshake, also for clients that name no server.
        if self._chosen is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._chosen
        return None


def _trust(context: ssl.SSLContext, authorities: Path) -> None:
    try:
        context.load_verify_locations(cafile=authorities)
    except ssl.SSLError as error:
        raise UnusableKeyPair(f"{authorities} holds no certificate authority in PEM") from error
    except OSError as error:
        raise UnusableKeyPair(f"{authorities} cannot be read: {(error.strerror or '').lower()}") from error


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    """The library reads only files. This one is in memory, so no key is written to a disk."""
    descriptor = os.memfd_create("key-pair", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pair.key.rstrip() + b"\n" + pair.certificate)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise UnusableKeyPair(f"certificate and key cannot be used: {_reason(error)}") from error
    finally:
        os.close(descriptor)


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if reason else "not PEM of a certificate and its unencrypted key"


log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0


class CertificateFiles:
    """Loads the files into `tls`. A pair that is unusable or half written changes nothing."""

    def __init__(self, certificate: Path, key: Path, tls: ServingTls) -> None:
        self._certificate = certificate
        self._key = key
        self._tls = tls
        self._logged = ""

    def load(self) -> None:
        """Loads the pair. Raises UnusableKeyPair with the names of the files."""
        try:
            if self._tls.use(read_key_pair(self._certificate, self._key)):
                log.info("serving the certificate of %s", self._certificate)
        except UnusableKeyPair as error:
            raise UnusableKeyPair(f"{self._certificate}, {self._key}: {error}") from error

    async def refresh(self) -> float:
        """Loads changed files. Returns the seconds until the next check."""
        try:
            self.load()
            self._logged = ""
        except UnusableKeyPair as error:
            if str(error) != self._logged:
                log.warning("%s; the previous certificate is still served", error)
            self._logged = str(error)
        return CHECK_SECONDS
