"""HTTP requests and answers as values, independent of the server that reads and writes them."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

import msgspec

from proto.extender import ExtenderError

log = logging.getLogger(__name__)

LARGEST_BODY_BYTES = 64 * 1024 * 1024


class HttpRequest(msgspec.Struct, frozen=True):
    """A whole request."""

    body: bytes = b""
    query: Mapping[str, str] = {}
    """The first value of each name."""


class HttpAnswer(msgspec.Struct, frozen=True):
    body: bytes = b""
    status: int = 200
    media_type: str = "application/json"
    afterwards: Callable[[], None] | None = None
    """Work to do after the answer is sent: the caller need not wait for it."""


Endpoint = Callable[[HttpRequest], Awaitable[HttpAnswer]]
Routes = Mapping[str, Mapping[str, Endpoint]]
"""Endpoints by path and method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Everything that is served to kube-scheduler. `finish` is awaited before connections are closed."""

    private: Routes
    """Endpoints for callers on this host only: they show what all pods hold and get."""
    public: Routes
    finish: Callable[[], Awaitable[None]]


def text_answer(text: str, status: int = 200) -> HttpAnswer:
    return HttpAnswer(f"{text}\n".encode() if text else b"", status, "text/plain; charset=utf-8")


def too_large() -> HttpAnswer:
    return text_answer(f"$: the body is larger than {LARGEST_BODY_BYTES} bytes", 400)


async def answer_of(endpoint: Endpoint, request: HttpRequest) -> HttpAnswer:
    """Returns the endpoint's answer. It is 400 with the path of the faulty field if the body is wrong, and 500 for an
    error of ours.
    """
    try:
        return await endpoint(request)
    except ExtenderError as error:
        return text_answer(str(error), 400)
    except Exception:
        log.exception("a request failed")
        return text_answer("the extender failed on this request; its log has the reason", 500)


@lru_cache(maxsize=256)
def is_local(remote: str | None) -> bool:
    """Returns whether an address belongs to this host's loopback, also as an IPv6 listener sees IPv4."""
    try:
        address = ip_address(remote or "")
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
