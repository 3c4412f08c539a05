"""Refusals as the API server words them (pure)."""

from typing import Any

JsonObject = dict[str, Any]
"""A Kubernetes object as JSON; what is handed out of the store is shared and must not be changed."""


class ApiRefusal(Exception):
    """The request is answered with a Status of this code and reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message

    def status(self) -> JsonObject:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def bad_request(message: str) -> ApiRefusal:
    return ApiRefusal(400, "BadRequest", message)


def not_found(plural: str, name: str) -> ApiRefusal:
    return ApiRefusal(404, "NotFound", f'{plural} "{name}" not found')


def already_exists(plural: str, name: str) -> ApiRefusal:
    return ApiRefusal(409, "AlreadyExists", f'{plural} "{name}" already exists')


def conflict(plural: str, name: str, why: str) -> ApiRefusal:
    return ApiRefusal(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')


def invalid(kind: str, name: str, why: str) -> ApiRefusal:
    return ApiRefusal(422, "Invalid", f'{kind} "{name}" is invalid: {why}')


def expired(message: str) -> ApiRefusal:
    return ApiRefusal(410, "Expired", message)


def success(plural: str, name: str, uid: str = "") -> JsonObject:
    details: JsonObject = {"name": name, "kind": plural}
    if uid:
        details["uid"] = uid
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
