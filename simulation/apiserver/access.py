"""Access rights (pure): everything is allowed except what is switched off; it also answers reviews of access.

Source: authorization.k8s.io/v1 SelfSubjectAccessReview of the Kubernetes API reference.
"""

from collections.abc import Collection

from simulation.apiserver.errors import JsonObject, forbidden
from simulation.apiserver.routes import RecordedRequest, parse_target

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
    target = parse_target(request.path)
    if target is None or (request.verb, request.resource) not in denied:
        return
    kind, what = target.kind, f"{request.resource}/{request.subresource}".strip("/")
    where = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    who = f'User "{request.user}" cannot {request.verb} resource "{what}" in API group "{request.group}" {where}'
    raise forbidden(kind, request.name, who)
