"""Serves the admission webhook over HTTPS, in the form that the API server sends and expects (edge)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aiohttp import web

from program.logs import RateLimit
from program.tasks import Tasks
from proto.admission import (
    FORBIDDEN,
    AdmissionError,
    AdmissionVerdict,
    PodReview,
    ReviewIdentity,
    decode_review,
    decode_template_review,
    encode_answer,
    failed,
)
from scheduler_ext.admission.admit import GpuMemory, Why, admit
from scheduler_ext.admission.containers import TEMPLATES_PATH, WEBHOOK_PATH, AdmissionSettings
from scheduler_ext.admission.templates import admit_templates
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.metrics.counters import Admission, ExtenderMetrics
from scheduler_ext.quota_class import QuotaClass, quota_class

log = logging.getLogger(__name__)
log_of_callers = logging.getLogger(f"{__name__}.callers")
"""The log for what callers send: the API server, and anybody who reaches the port."""
log_of_callers.addFilter(RateLimit(at_once=20))

LARGEST_BODY_BYTES = 1024 * 1024
"""Limit of a request. A pod that fits in etcd is rarely a tenth of it, and none of this size takes 50 ms."""
AFTER_FAULT_SECONDS = 60.0


Admits = Callable[[bytes], tuple[ReviewIdentity, AdmissionVerdict]]
"""A function that answers a question of the API server. Raises AdmissionError."""


class Certificate(Protocol):
    """Keeps the certificate of a listener current."""

    async def refresh(self) -> float:
        """Checks once. Returns the seconds until the next check. Raises nothing that a later check could resolve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Answers every request with status 200: the answer itself names the problem."""

    settings: AdmissionSettings
    quota_of: Callable[[str, QuotaClass], Quota | None]
    gpu_memory: GpuMemory
    metrics: ExtenderMetrics
    monotonic: Callable[[], float]

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY_BYTES)
        application.router.add_post(WEBHOOK_PATH, partial(self._answer, self._admit_pod))
        application.router.add_post(TEMPLATES_PATH, partial(self._answer, self._admit_templates))
        return application

    async def _answer(self, admits: Admits, request: web.Request) -> web.Response:
        began = self.monotonic()
        identity, verdict = await _judged(admits, request)
        body = encode_answer(identity, verdict)
        self.metrics.admitted(_outcome(verdict), verdict.reason, self.monotonic() - began)
        return web.Response(body=body, content_type="application/json")

    def _admit_pod(self, body: bytes) -> tuple[ReviewIdentity, AdmissionVerdict]:
        review = decode_review(body)
        try:
            quota = self.quota_of(review.namespace, quota_class(review.pod))
            verdict = admit(review, self.settings, quota, self.gpu_memory)
        except Exception:
            return review.identity, _fault()
        _report(review, verdict)
        return review.identity, verdict

    def _admit_templates(self, body: bytes) -> tuple[ReviewIdentity, AdmissionVerdict]:
        review = decode_template_review(body)
        try:
            return review.identity, admit_templates(review, self.settings, self.gpu_memory)
        except Exception:
            return review.identity, _fault()


async def _judged(admits: Admits, request: web.Request) -> tuple[ReviewIdentity, AdmissionVerdict]:
    try:
        return admits(await _body(request))
    except AdmissionError as error:
        log_of_callers.warning("a question to the webhook cannot be answered: %s", error)
        return error.identity, failed(str(error), error.code, reason="UnreadableReview")
    except Exception:
        return ReviewIdentity(), _fault()


def _fault() -> AdmissionVerdict:
    """Returns the answer to what must not happen, so that the API server need not wait until its timeout."""
    log_of_callers.exception("the webhook failed on a pod")
    return failed("the webhook failed on this pod; its log has the reason", reason="Fault")


@asynccontextmanager
async def kept_current(certificate: Certificate) -> AsyncIterator[None]:
    """Refreshes the certificate at once, and later whenever it is due."""
    tasks = Tasks()
    tasks.begin(_keep_current(certificate, await _refreshed(certificate)))
    try:
        yield
    finally:
        await tasks.end()


async def _keep_current(certificate: Certificate, pause_seconds: float) -> None:
    while True:
        await asyncio.sleep(pause_seconds)
        pause_seconds = await _refreshed(certificate)


async def _refreshed(certificate: Certificate) -> float:
    try:
        return await certificate.refresh()
    except Exception:
        log.exception("the webhook's certificate cannot be refreshed")
        return AFTER_FAULT_SECONDS


async def _body(request: web.Request) -> bytes:
    """Returns the request's body. Raises AdmissionError."""
    try:
        body = await request.read()
    except (web.RequestPayloadError, ConnectionError) as error:
        raise AdmissionError(f"the request body cannot be read: {error}") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise AdmissionError(f"the request body is larger than {LARGEST_BODY_BYTES} bytes", code=413) from error
    content_type = request.headers.get("Content-Type", "")
    if content_type != "application/json":
        raise AdmissionError(f"the content type is {content_type!r}; send application/json")
    return body


def _outcome(verdict: AdmissionVerdict) -> Admission:
    if verdict.allowed:
        return Admission.PATCHED if verdict.patch else Admission.ALLOWED
    return Admission.DENIED if verdict.code == FORBIDDEN else Admission.FAILED


def _report(review: PodReview, verdict: AdmissionVerdict) -> None:
    metadata = review.pod.metadata
    name = f"{review.namespace}/{metadata.name or f'{metadata.generate_name}…'}"
    if not verdict.allowed:
        log_of_callers.info("pod %s is refused: %s", name, verdict.message)
    elif verdict.reason == Why.BYPASS:
        log_of_callers.info("pod %s would be refused if bypasses were denied: %s", name, "; ".join(verdict.warnings))
    else:
        log.debug("pod %s is allowed with %d changes: %s", name, len(verdict.patch), verdict.reason)
