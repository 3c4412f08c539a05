"""Errors of the API server: one class for each reaction of a caller (pure).

The status is only in the message: callers react to the class.
"""


class ApiServerUnconfigured(Exception):
    """There is neither a usable kubeconfig nor the service account of a pod."""


class ApiUnreachable(Exception):
    """No usable answer: the connection was refused, reset or timed out, or another server answered."""


class ApiError(Exception):
    """The API server refused the request."""

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Invalid(ApiError):
    """Status 400 or 422: the same request will never be accepted."""


class Unauthorized(ApiError):
    """401: the credentials are not accepted, even after they were read again."""


class Forbidden(ApiError):
    """Status 403. A kube-apiserver that has just started refuses all requests until it has read its roles."""


class NotFound(ApiError):
    """Status 404."""


class Conflict(ApiError):
    """409: the object exists already, or has changed. Read it again."""


class Gone(ApiError):
    """410: the position of a list or a watch has expired. List again."""


class TooManyRequests(ApiError):
    """429: nothing was done. For an eviction: a PodDisruptionBudget forbids it now."""


class ServerError(ApiError):
    """5xx: the request may have been carried out all the same, and may be accepted later."""


_CLASSES = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def refusal(status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> ApiError:
    """Returns an error of the class for the HTTP `status`; a plain ApiError for any other status."""
    kind = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
    return kind(status, reason, message, retry_after_seconds)
