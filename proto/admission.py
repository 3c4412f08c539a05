"""AdmissionReview: the question of the API server to a webhook about a pod, and the answer.

Source: admission.k8s.io/v1 of the Kubernetes API reference; `v1beta1` has the same form.
"""

import base64
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proto.decoding import decoded
from proto.kubernetes.objects import Object, Pod, Status
from proto.kubernetes.wire import NotJson, UnreadableObject, decode_object

Json = dict[str, Any]

API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
KIND = "AdmissionReview"
FORBIDDEN = 403
MOST_CONTAINERS = 256
"""Containers of a pod, init containers included; a pod with more is not read."""
LONGEST_WITH_NULLS = 64 * 1024
"""Bytes of a pod with nulls for missing fields. It is slow to read, and the API server writes none."""

LONGEST_RESOURCES = 128 * 1024
"""Bytes of all containers' resources: tens of thousands of names would take a tenth of a second."""
LONGEST_METADATA = 512 * 1024
"""Bytes of a pod's annotations, and of its labels; the API server allows 256 KiB of annotations."""

_PATCHED_METADATA = frozenset({"annotations", "labels"})
_PATCHED_SPEC = frozenset({"schedulerName", "runtimeClassName"})
_CONTAINERS = frozenset({"containers", "initContainers"})
_PATCHED_CONTAINER = frozenset({"env", "resources"})
_Rows = list[msgspec.Raw] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewIdentity:
    """The fields that an answer repeats from its question."""

    uid: str = ""
    api_version: str = API_VERSIONS[0]
    kind: str = KIND


class AdmissionError(ValueError):
    """A question that cannot be answered: one sentence, and the HTTP status `code` for the review."""

    def __init__(self, problem: str, *, code: int = 400, identity: ReviewIdentity | None = None) -> None:
        super().__init__(problem)
        self.code = code
        self.identity = identity or ReviewIdentity()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReview:
    """A pod about to be created: as JSON, to be patched, and typed, to be read.

    What no patch changes may be msgspec.Raw in `object`.
    """

    identity: ReviewIdentity = field(default_factory=ReviewIdentity)
    operation: str = "CREATE"
    namespace: str = ""
    object: Json
    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReview:
    """An object about to be created that has templates of pods, such as a Job."""

    identity: ReviewIdentity = field(default_factory=ReviewIdentity)
    object: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionVerdict:
    """The answer. `patch` is a list of RFC 6902 operations, empty when the pod stays as it is."""

    allowed: bool
    code: int = 200
    message: str = ""
    patch: tuple[Json, ...] = ()
    warnings: tuple[str, ...] = ()
    reason: str = field(default="", compare=False)
    """One word for the metric that counts answers; it is not sent."""


def denied(message: str, *, reason: str = "") -> AdmissionVerdict:
    """Refuses the pod; its author reads `message`."""
    return AdmissionVerdict(allowed=False, code=FORBIDDEN, message=message, reason=reason)


def failed(message: str, code: int = 500, *, reason: str = "") -> AdmissionVerdict:
    """Refuses a pod that cannot be read: `failurePolicy` does not apply to an answer."""
    return AdmissionVerdict(allowed=False, code=code, message=message, reason=reason)


class _Request(Object):
    uid: str | None = None
    operation: str | None = None
    namespace: str | None = None
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(Object):
    api_version: str | None = None
    kind: str | None = None
    request: _Request | None = None


class _OutlineContainer(Object):
    resources: msgspec.Raw = msgspec.Raw(b"")


class _OutlineMetadata(Object):
    annotations: msgspec.Raw = msgspec.Raw(b"")
    labels: msgspec.Raw = msgspec.Raw(b"")


class _OutlineSpec(Object):
    containers: _Rows = None
    init_containers: _Rows = None


class _Outline(Object):
    metadata: _OutlineMetadata | None = None
    spec: _OutlineSpec | None = None


class _Response(Object):
    uid: str
    allowed: bool
    status: Status
    patch_type: str = ""
    patch: str = ""
    """Base64 of an RFC 6902 list."""
    warnings: tuple[str, ...] = ()


def decode_review(body: bytes) -> PodReview:
    """Reads a review of a pod. Raises AdmissionError, with as much of the identity as could be read."""
    return _pod_review(*_question(body))


def decode_template_review(body: bytes) -> TemplateReview:
    """Reads a review of an object with templates. Raises AdmissionError as `decode_review` does."""
    identity, request = _question(body)
    try:
        return TemplateReview(identity=identity, object=decoded(request.object, Json))
    except msgspec.DecodeError as error:
        raise AdmissionError(f"request.object is not an object: {error}", identity=identity) from error


def _question(body: bytes) -> tuple[ReviewIdentity, _Request]:
    if not body.strip():
        raise AdmissionError("the request body is empty")
    try:
        review = decoded(body, _Review)
    except msgspec.DecodeError as error:
        raise AdmissionError(f"the request body is not an {KIND}: {error}") from error
    version, kind = review.api_version or API_VERSIONS[0], review.kind or KIND
    if version not in API_VERSIONS or kind != KIND:
        raise AdmissionError(f"{version} {kind} is not answered here; send {API_VERSIONS[0]} {KIND}")
    if review.request is None:
        raise AdmissionError("request: missing", identity=ReviewIdentity(api_version=version))
    return ReviewIdentity(uid=review.request.uid or "", api_version=version), review.request


def encode_answer(identity: ReviewIdentity, verdict: AdmissionVerdict) -> bytes:
    reason = "Forbidden" if verdict.code == FORBIDDEN else ""
    response = _Response(
        uid=identity.uid,
        allowed=verdict.allowed,
        status=Status(code=verdict.code, message=verdict.message, reason=reason),
        warnings=verdict.warnings,
    )
    if verdict.patch:
        response.patch_type = "JSONPatch"
        response.patch = base64.b64encode(msgspec.json.encode(verdict.patch)).decode()
    return msgspec.json.encode({"apiVersion": identity.api_version, "kind": identity.kind, "response": response})


def _pod_review(identity: ReviewIdentity, request: _Request) -> PodReview:
    raw = request.object
    try:
        problem = _too_much(raw)
        if problem:
            raise AdmissionError(f"request.object: {problem}", identity=identity)
        pod = decoded(raw, Pod) if len(raw) > LONGEST_WITH_NULLS else decode_object(Pod, raw)
        json = _shallow(raw)
    except (UnreadableObject, NotJson, msgspec.DecodeError) as error:
        raise AdmissionError(f"request.object is not a pod: {error}", identity=identity) from error
    if json.get("kind", "Pod") != "Pod":
        raise AdmissionError(f"request.object is a {json['kind']}; only pods are admitted here", identity=identity)
    namespace = request.namespace or pod.metadata.namespace or "default"
    return PodReview(identity=identity, operation=request.operation or "", namespace=namespace, object=json, pod=pod)


def _too_much(raw: msgspec.Raw) -> str:
    """Returns why the pod is not read; empty when it is read."""
    outline = decoded(raw, _Outline)
    spec, metadata = outline.spec or _OutlineSpec(), outline.metadata or _OutlineMetadata()
    rows = [*(spec.containers or ()), *(spec.init_containers or ())]
    if len(rows) > MOST_CONTAINERS:
        return f"spec has {len(rows)} containers; a pod with more than {MOST_CONTAINERS} is not read"
    containers = [decoded(row, _OutlineContainer | None) or _OutlineContainer() for row in rows]
    for what, size, most in (
        ("its containers' resources have", sum(len(each.resources) for each in containers), LONGEST_RESOURCES),
        ("metadata.annotations has", len(metadata.annotations), LONGEST_METADATA),
        ("metadata.labels has", len(metadata.labels), LONGEST_METADATA),
    ):
        if size > most:
            return f"{what} {size} bytes; a pod with more than {most} there is not read"
    return ""


def _shallow(raw: msgspec.Raw) -> Json:
    """Decodes the pod's JSON only as deep as patches reach; the rest stays as written, at no cost."""
    pod = _members(raw)
    if "kind" in pod:
        pod["kind"] = decoded(pod["kind"], Any)
    if "metadata" in pod:
        pod["metadata"] = metadata = _members(pod["metadata"])
        for name in _PATCHED_METADATA & metadata.keys():
            metadata[name] = decoded(metadata[name], Any)
    if "spec" in pod:
        pod["spec"] = spec = _members(pod["spec"])
        for name in _PATCHED_SPEC & spec.keys():
            spec[name] = decoded(spec[name], Any)
        for name in _CONTAINERS & spec.keys():
            spec[name] = [_container(each) for each in decoded(spec[name], _Rows) or ()]
    return pod


def _container(raw: msgspec.Raw) -> Json:
    container = _members(raw)
    for name in _PATCHED_CONTAINER & container.keys():
        container[name] = decoded(container[name], Any)
    return container


def _members(raw: msgspec.Raw) -> Json:
    return decoded(raw, dict[str, msgspec.Raw] | None) or {}
