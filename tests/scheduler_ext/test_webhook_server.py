"""The webhook over HTTPS with a certificate of its own, as the API server calls it."""

import re
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import msgspec
import pytest

from program.address import ListenAddress
from proto.admission import Json
from proto.kubernetes.objects import ResourceQuota
from scheduler_ext.admission.containers import TEMPLATES_PATH, AdmissionSettings
from scheduler_ext.certificates.issue import issue
from scheduler_ext.certificates.tls import KeyPair, ServingTls
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.http.server import listening
from scheduler_ext.metrics.counters import ExtenderMetrics
from scheduler_ext.quota_class import QuotaClass
from scheduler_ext.webhook_server import LARGEST_BODY_BYTES, Webhook, kept_current
from tests.polling import until
from tests.scheduler_ext.admission.pods import container, envelope, opened, pod
from tests.scheduler_ext.metrics.test_metrics import samples, seen

NOW = datetime.now(UTC)  # noqa: TID251 - real handshakes look at the real clock
OURS = issue(frozenset({"127.0.0.1"}), NOW)
QUOTAS = {"ns": Quota(memory_mib=1000)}


class Client:
    """Trusts OURS and nobody else."""

    def __init__(self, url: str, http: aiohttp.ClientSession, metrics: ExtenderMetrics) -> None:
        self.metrics = metrics
        self._url = url
        self._http = http
        self._trust = ssl.create_default_context(cadata=OURS.authorities.decode())

    async def post(self, body: bytes, content_type: str = "application/json", path: str = "/webhook") -> Json:
        headers = {"Content-Type": content_type}
        call = self._http.post(f"{self._url}{path}?timeout=10s", data=body, headers=headers, ssl=self._trust)
        async with call as response:
            assert (response.status, response.content_type) == (200, "application/json")
            return opened(await response.read())

    async def status(self, method: str, path: str) -> int:
        async with self._http.request(method, self._url + path, ssl=self._trust) as response:
            return response.status


def quota_of(namespace: str, _: QuotaClass) -> Quota | None:
    if namespace == "broken":
        raise KeyError(namespace)
    return QUOTAS.get(namespace)


@asynccontextmanager
async def serving(
    quota_of: Callable[[str, QuotaClass], Quota | None] = quota_of, *, gpu_sums: bool = False
) -> AsyncIterator[Client]:
    tls = ServingTls()
    tls.use(KeyPair(OURS.certificate, OURS.key))
    metrics = ExtenderMetrics()
    webhook = Webhook(
        settings=AdmissionSettings(gpu_sums=gpu_sums),
        quota_of=quota_of,
        gpu_memory=lambda _: 40960,
        metrics=metrics,
        monotonic=time.monotonic,
    )
    address = ListenAddress(host="127.0.0.1", port=0)
    async with (
        listening(webhook.application(), address, "--flag", tls.context) as url,
        aiohttp.ClientSession() as http,
    ):
        assert url.startswith("https://127.0.0.1:")
        yield Client(url, http, metrics)


def answer(response: Json, uid: str = "u-1") -> Json:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid, **response}}


async def test_a_pod_is_completed() -> None:
    async with serving() as client:
        assert await client.post(envelope(pod(container(gpumem="1000")))) == answer(
            {
                "allowed": True,
                "status": {"code": 200},
                "patchType": "JSONPatch",
                "patch": [
                    {"op": "replace", "path": "/spec/schedulerName", "value": "topogpu-scheduler"},
                    {"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": "1"},
                ],
            }
        )


async def test_a_job_of_a_queue_gets_the_sums_of_its_gpus() -> None:
    job = {"kind": "Job", "spec": {"template": {"spec": pod(container(gpu="2"))["spec"] | {"schedulerName": ""}}}}
    async with serving(gpu_sums=True) as client:
        answered = await client.post(envelope(job), path=TEMPLATES_PATH)
        assert [operation["value"] for operation in answered["response"]["patch"]] == [str(2 * 40960), "200"]
        broken = await client.post(envelope([]), path=TEMPLATES_PATH)  # type: ignore[arg-type] # no object at all
        assert broken["response"]["status"]["code"] == 400


async def test_a_pod_past_the_quota_is_refused() -> None:
    async with serving() as client:
        message = (
            "exceeding resource quota: the pod asks for 1001 MiB of GPU memory, and 0 of the namespace's 1000 are taken"
        )
        status = {"code": 403, "message": message, "reason": "Forbidden"}
        assert await client.post(envelope(pod(container(gpumem="1001")))) == answer(
            {"allowed": False, "status": status}
        )
        elsewhere = await client.post(envelope(pod(container(gpumem="1001")), namespace="other"))
        assert elsewhere["response"]["allowed"]


async def test_a_pod_is_refused_only_by_quotas_that_hold_for_pods_like_it() -> None:
    ledger = Ledger()
    selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]}
    spec = {"hard": {"limits.nvidia.com/gpumem": "1000"}, "scopeSelector": selector}
    ledger.quotas.apply(msgspec.convert({"metadata": {"name": "q", "namespace": "ns"}, "spec": spec}, ResourceQuota))
    async with serving(ledger.quotas.left) as client:
        for priority, allowed in (("low", False), ("high", True), ("", True)):
            asking = envelope(pod(container(gpumem="1001"), priorityClassName=priority))
            assert (await client.post(asking))["response"]["allowed"] is allowed


@pytest.mark.parametrize(
    ("body", "content_type", "code", "message"),
    [
        (b"", "application/json", 400, "the request body is empty"),
        (b"{}", "application/yaml", 400, "the content type is 'application/yaml'; send application/json"),
        (b"{}", "application/json; charset=utf-8", 400, "the content type is 'application/json; charset=utf-8'; "),
        (b"{}", "application/json", 400, "request: missing"),
        (b"{", "application/json", 400, "the request body is not an AdmissionReview: "),
        (b" " * (LARGEST_BODY_BYTES + 1), "application/json", 413, "the request body is larger than 1048576 bytes"),
    ],
)
async def test_what_is_wrong_with_a_question_stands_in_the_answer(
    body: bytes, content_type: str, code: int, message: str
) -> None:
    async with serving() as client:
        response = (await client.post(body, content_type))["response"]
        assert (response["uid"], response["allowed"], response["status"]["code"]) == ("", False, code)
        assert response["status"]["message"].startswith(message)


async def test_a_fault_of_ours_is_an_answer_as_well() -> None:
    async with serving() as client:
        status = {"code": 500, "message": "the webhook failed on this pod; its log has the reason"}
        body = envelope(pod(container(gpu="1")), namespace="broken")
        assert await client.post(body) == answer({"allowed": False, "status": status})


@pytest.fixture
def _recursion_as_python_has_it() -> Iterator[None]:
    """hypothesis raises the limit of the whole process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("_recursion_as_python_has_it")
async def test_a_pod_nested_beyond_reason_is_refused_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    deep = b"[" * 600 + b"]" * 600
    body = b'{"request":{"uid":"u-1","operation":"CREATE","object":{"metadata":{"x":' + deep + b',"name":null}}}}'
    async with serving() as client:
        told = await client.post(body)
        # Python says more where it is traced.
        message = told["response"]["status"]["message"]
        assert re.fullmatch(r"request\.object is not a pod: maximum recursion depth exceeded[ \w]*", message)
        assert told == answer({"allowed": False, "status": {"code": 400, "message": message}})
    assert "Traceback" not in caplog.text


async def test_answers_are_counted_by_what_became_of_the_pod_and_why() -> None:
    async with serving() as client:
        for shown in (
            envelope(pod(container(gpumem="1000"))),
            envelope(pod(container())),
            envelope(pod(container(gpumem="1001"))),
            envelope(pod(container(gpu="many"))),
            envelope(pod(container(gpu="1")), namespace="broken"),
            b"",
        ):
            await client.post(shown)
        text = b"".join(client.metrics.exposition(seen())).decode()
        counted = samples(text, "topogpu_webhook_admissions_total")
        assert {(labels["outcome"], labels["reason"]): value for labels, value in counted} == {
            ("patched", "Gpus"): 1,
            ("allowed", "NoGpus"): 1,
            ("denied", "QuotaExceeded"): 1,
            ("failed", "UnreadableRequest"): 1,
            ("failed", "Fault"): 1,
            ("failed", "UnreadableReview"): 1,
        }
        assert samples(text, "topogpu_webhook_duration_seconds_count") == [({}, 6)]


async def test_nothing_else_is_served_here() -> None:
    async with serving() as client:
        paths = [("POST", "/filter"), ("POST", "/bind"), ("GET", "/webhook"), ("GET", "/metrics")]
        assert [await client.status(*path) for path in paths] == [404, 404, 405, 404]


class Looks:
    """A certificate whose second look fails."""

    def __init__(self) -> None:
        self.count = 0

    async def refresh(self) -> float:
        self.count += 1
        if self.count == 2:
            raise ValueError("a fault")
        return 0.0


async def test_a_certificate_is_looked_at_before_anything_is_served_and_a_fault_in_it_stops_nothing() -> None:
    certificate = Looks()

    async def looked_twice() -> bool:
        return certificate.count == 2

    async with kept_current(certificate):
        assert certificate.count == 1
        await until(looked_twice)
