"""Access rights (pure): everything is allowed except what is switched off; it also answers reviews of access and of
tokens.

Source: authorization.k8s.io/v1 SelfSubjectAccessReview and SubjectAccessReview, authentication.k8s.io/v1 TokenReview of
the Kubernetes API reference.
"""

from collections.abc import Collection, Mapping

from simulation.apiserver.errors import JsonObject, forbidden
from simulation.apiserver.routes import RecordedRequest, parse_target

_KINDS = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": "SelfSubjectAccessReview",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": "SubjectAccessReview",
    "/apis/authentication.k8s.io/v1/tokenreviews": "TokenReview",
}

Right = tuple[str, str]
"""A verb, and the plural of a resource or the path of something else."""


def is_review(path: str) -> bool:
    return path in _KINDS


def review(path: str, question: JsonObject, denied: Collection[Right], users: Mapping[str, str]) -> JsonObject:
    """Returns the review at this path with its answer. `users` are by their tokens."""
    kind, spec = _KINDS[path], question.get("spec") or {}
    status: JsonObject
    if kind == "TokenReview":
        user = users.get(spec.get("token", ""))
        status = {"user": {}, "error": "the token is not known"} if user is None else _authenticated(user)
    else:
        named = spec.get("resourceAttributes") or spec.get("nonResourceAttributes") or {}
        what = named.get("resource") or named.get("path", "")
        status = {"allowed": (named.get("verb", ""), what) not in denied}
    return question | {"kind": kind, "apiVersion": path.removeprefix("/apis/").rpartition("/")[0]} | {"status": status}


def _authenticated(user: str) -> JsonObject:
    return {"authenticated": True, "user": {"username": user, "groups": ["system:authenticated"]}}


def check(request: RecordedRequest, denied: Collection[Right]) -> None:
    """Raises ApiRefusal as role-based access control does."""
    target = parse_target(request.path)
    if target is None or (request.verb, request.resource) not in denied:
        return
    kind, what = target.kind, f"{request.resource}/{request.subresource}".strip("/")
    where = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    who = f'User "{request.user}" cannot {request.verb} resource "{what}" in API group "{request.group}" {where}'
    raise forbidden(kind, request.name, who)
