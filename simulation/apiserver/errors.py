"""Refusals with the API server's messages (pure).

Source: Kubernetes API conventions, "Error codes" and "Response status kind".
"""

from typing import Any

from simulation.apiserver.kinds import ServedKind

JsonObject = dict[str, Any]
"""A Kubernetes object as JSON; what is handed out of the store is shared and must not be changed."""

_CAUSES = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Duplicate value": "FieldValueDuplicate",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "Too long": "FieldValueTooLong",
}


class ApiRefusal(Exception):
    """The request is answered with a Status of this code and reason; `details` name its object."""

    def __init__(self, code: int, reason: str, message: str, details: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> JsonObject:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        reason = {"reason": self.reason} if self.reason else {}
        details = {} if self.details is None else {"details": self.details}
        return status | reason | details | {"code": self.code}


class NotOfItsType(Exception):
    """A field holds what its type cannot: a bad request, or as the outcome of a patch an invalid one."""


def bad_request(message: str) -> ApiRefusal:
    return ApiRefusal(400, "BadRequest", message)


def not_found(kind: ServedKind, name: str) -> ApiRefusal:
    return ApiRefusal(404, "NotFound", f'{kind.qualified_plural} "{name}" not found', about(kind, name))


def already_exists(kind: ServedKind, name: str) -> ApiRefusal:
    return ApiRefusal(409, "AlreadyExists", f'{kind.qualified_plural} "{name}" already exists', about(kind, name))


def conflict(kind: ServedKind, name: str, why: str) -> ApiRefusal:
    return conflict_on(kind.qualified_plural, name, why, about(kind, name))


def conflict_on(what: str, name: str, why: str, details: JsonObject | None = None) -> ApiRefusal:
    """Of `what` is no plural of a kind."""
    message = f'Operation cannot be fulfilled on {what} "{name}": {why}'
    return ApiRefusal(409, "Conflict", message, details or {"name": name, "kind": what})


def forbidden(kind: ServedKind, name: str, why: str) -> ApiRefusal:
    subject = f'{kind.qualified_plural} "{name}"' if name else kind.qualified_plural
    return ApiRefusal(403, "Forbidden", f"{subject} is forbidden: {why}", about(kind, name))


def invalid(kind: ServedKind, name: str, *problems: str) -> ApiRefusal:
    """Each problem reads `field: Required value` or `field: Invalid value: ...`."""
    return invalid_object(kind.kind, kind.group, name, *problems)


def invalid_object(kind: str, group: str, name: str, *problems: str) -> ApiRefusal:
    """Returns the error also for what is no object of a served kind, such as the options of a request."""
    causes = [_cause(problem) for problem in problems]
    named = {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}
    told = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    message = f'{f"{kind}.{group}" if group else kind} "{name}" is invalid: {told}'
    return ApiRefusal(422, "Invalid", message, named | {"causes": causes})


def _cause(problem: str) -> JsonObject:
    field, _, message = problem.partition(": ")
    return {"reason": _CAUSES[message.partition(":")[0]], "message": message, "field": field}


def invalid_patch(why: str) -> ApiRefusal:
    """The outcome of a patch is no object of its kind."""
    return invalid_object("", "", "", f"patch: Invalid value: {why}")


def expired(message: str) -> ApiRefusal:
    return ApiRefusal(410, "Expired", message)


def not_served() -> ApiRefusal:
    return ApiRefusal(404, "NotFound", "the server could not find the requested resource", {})


def not_allowed() -> ApiRefusal:
    message = "the server does not allow this method on the requested resource"
    return ApiRefusal(405, "MethodNotAllowed", message, {})


def about(kind: ServedKind, name: str) -> JsonObject:
    """Returns the object as details name it."""
    parts = (("name", name), ("group", kind.group), ("kind", kind.plural))
    return {key: value for key, value in parts if value}


def success(details: JsonObject | None = None, **more: object) -> JsonObject:
    told = {"details": details} if details else {}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"} | told | more


def runs_nothing(part: str) -> ApiRefusal:
    """Returns the error for what needs a process in a container, or a port of one."""
    return ApiRefusal(
        501, "NotImplemented", f"this cluster is simulated: its containers run nothing, so pods have no {part}"
    )
