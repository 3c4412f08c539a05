"""Why the API server did not do what was asked: one class for each reaction (pure).

The status of a refusal stands in its message alone: callers react to the class.
"""


class ApiServerUnconfigured(Exception):
    """Neither a usable kubeconfig nor the service account of a pod."""


class ApiUnreachable(Exception):
    """No usable answer: refused, reset, timed out, or not the API server that is speaking."""


class ApiError(Exception):
    """The API server answered, and its answer is no."""

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Invalid(ApiError):
    """400 or 422: the same request will never be accepted."""


class Unauthorized(ApiError):
    """401: the credentials are not accepted, not even after they were read again."""


class Forbidden(ApiError):
    """403. A kube-apiserver that has just started refuses everybody until it has read its roles."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the object exists already, or is another one by now. Read it again."""


class Gone(ApiError):
    """410: the position of a list or a watch has expired. List again."""


class TooManyRequests(ApiError):
    """429: nothing was done. For an eviction: a PodDisruptionBudget does not allow it now."""


class ServerError(ApiError):
    """5xx: the request may have been carried out nevertheless, and may be accepted later."""


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
    """Of the class that the HTTP `status` calls for; a plain ApiError where it calls for no reaction of its own."""
    kind = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
    return kind(status, reason, message, retry_after_seconds)
