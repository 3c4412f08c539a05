"""Reads a certificate that another program stores in two files, for example cert-manager (edge)."""

import logging
from pathlib import Path

from scheduler_ext.certificates.tls import ServingTls, UnusableKeyPair, read_key_pair

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
