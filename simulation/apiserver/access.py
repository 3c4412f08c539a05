"""Who may do what (pure): everybody everything, but for what is switched off; and the answer to who asks beforehand.

Source: authorization.k8s.io/v1 SelfSubjectAccessReview of the Kubernetes API reference.
"""

from collections.abc import Collection

from simulation.apiserver.errors import ApiRefusal, JsonObject
from simulation.apiserver.routes import RecordedRequest

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

Right = tuple[str, str]
"""A verb and the plural of a resource."""


def review(question: JsonObject, denied: Collection[Right]) -> JsonObject:
    """The SelfSubjectAccessReview with its answer."""
    attributes = (question.get("spec") or {}).get("resourceAttributes") or {}
    allowed = (attributes.get("verb", ""), attributes.get("resource", "")) not in denied
    kind = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
    return question | kind | {"status": {"allowed": allowed}}


def check(request: RecordedRequest, denied: Collection[Right]) -> None:
    """Raises ApiRefusal as role-based access control does."""
    if (request.verb, request.resource) in denied:
        who = f'User "simulation" cannot {request.verb} resource "{request.resource}" in API group "{request.group}"'
        raise ApiRefusal(403, "Forbidden", f"{request.resource} is forbidden: {who}")
