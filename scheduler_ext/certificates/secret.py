"""Keeps our own certificate in a Secret that all replicas share and the API server trusts (edge)."""

import base64
import binascii
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound
from proto.kubernetes.objects import MUTATING_WEBHOOK_CONFIGURATIONS, SECRETS, ObjectMeta, Secret
from scheduler_ext.certificates.issue import Issued, is_due, issue, names_to_serve, read
from scheduler_ext.certificates.tls import KeyPair, ServingTls

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
SETTLE_SECONDS = 5.0
"""After this time every API server has seen which authorities to trust."""
RETRY_SECONDS = 5.0

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPlace:
    """The place in which the certificate is stored, and the names that it serves."""

    namespace: str
    name: str
    """The name of the Secret, and of the MutatingWebhookConfiguration that gets its caBundle."""
    names: frozenset[str]


class CertificateSecret:
    """Makes and renews a certificate, and loads it into `tls`. Any number of replicas may do so at the same time.

    A new certificate is served only after the configuration trusts it, and the previous one stays trusted. So at no
    moment of a rotation does a replica serve an untrusted certificate.
    """

    def __init__(self, *, api: ApiServer, place: SecretPlace, tls: ServingTls, now: Callable[[], datetime]) -> None:
        self._api = api
        self._place = place
        self._tls = tls
        self._now = now
        self._logged = ""

    async def refresh(self) -> float:
        """Renews and loads if due. Returns the seconds until the next check."""
        try:
            issued = await self._issued()
            if not self._tls.ready:
                self._show(issued)
            if not await self._trusted(issued.authorities):
                return SETTLE_SECONDS
            self._show(issued)
            self._logged = ""
        except (ApiError, ApiUnreachable) as error:
            self._complain(f"the webhook's certificate cannot be kept: {error}")
            return RETRY_SECONDS
        return CHECK_SECONDS

    def _show(self, issued: Issued) -> None:
        if self._tls.use(KeyPair(issued.certificate, issued.key)):
            log.info("serving the certificate of secret %s/%s", self._place.namespace, self._place.name)

    async def _issued(self) -> Issued:
        """Returns the stored certificate, made or renewed first if that was due. Raises ApiError or ApiUnreachable."""
        place, attempts = self._place, _ATTEMPTS
        while True:
            secret = await self._stored()
            issued, now = _content(secret), self._now()
            current = read(issued)
            if not is_due(current, place.names, now):
                return issued
            fresh = issue(names_to_serve(current, place.names, now), now, issued.authorities)
            attempts -= 1
            try:
                await self._store(secret, fresh)
            except Conflict:
                if not attempts:
                    raise
                # Another replica was first: use the one it stored, and drop ours.
                continue
            log.info("stored a new certificate in secret %s/%s", place.namespace, place.name)
            return fresh

    async def _stored(self) -> Secret | None:
        try:
            return await self._api.get(SECRETS, self._place.name, self._place.namespace)
        except NotFound:
            return None

    async def _store(self, before: Secret | None, issued: Issued) -> None:
        """Stores the certificate. Raises Conflict if the Secret is no longer as it was `before`."""
        place, data = self._place, _encoded(issued)
        if before is None:
            secret = Secret(metadata=ObjectMeta(name=place.name), type="kubernetes.io/tls", data=data)
            await self._api.create(SECRETS, secret, namespace=place.namespace)
        else:
            version = {"resourceVersion": before.metadata.resource_version}
            await self._api.patch(SECRETS, place.name, {"metadata": version, "data": data}, namespace=place.namespace)

    async def _trusted(self, authorities: bytes) -> bool:
        """Returns whether every webhook of the configuration already trusted these authorities. If not, trust them
        from now on.
        """
        name, bundle = self._place.name, base64.b64encode(authorities).decode()
        found = await self._api.get(MUTATING_WEBHOOK_CONFIGURATIONS, name)
        clients = [webhook.get("clientConfig") or {} for webhook in found.webhooks]
        if all(client.get("caBundle") == bundle for client in clients):
            return True
        pairs = zip(found.webhooks, clients, strict=True)
        webhooks = [{**webhook, "clientConfig": {**client, "caBundle": bundle}} for webhook, client in pairs]
        body = {"metadata": {"resourceVersion": found.metadata.resource_version}, "webhooks": webhooks}
        try:
            await self._api.patch(MUTATING_WEBHOOK_CONFIGURATIONS, name, body)
        except Conflict:
            return False
        log.info("mutatingwebhookconfiguration %s trusts the webhook's certificate", name)
        return False

    def _complain(self, problem: str) -> None:
        if problem != self._logged:
            log.warning("%s", problem)
        self._logged = problem


def _content(secret: Secret | None) -> Issued:
    """Returns the Secret's content. Texts that are not base64 count as empty."""
    data = secret.data if secret is not None else {}

    def value(key: str) -> bytes:
        try:
            return base64.b64decode(data.get(key, ""), validate=True)
        except binascii.Error:
            return b""

    return Issued(authorities=value("ca.crt"), certificate=value("tls.crt"), key=value("tls.key"))


def _encoded(issued: Issued) -> dict[str, str]:
    parts = {"ca.crt": issued.authorities, "tls.crt": issued.certificate, "tls.key": issued.key}
    return {key: base64.b64encode(value).decode() for key, value in parts.items()}
