"""What `serve` is told by its flags, checked once."""

import re
from dataclasses import dataclass
from enum import StrEnum

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_LABEL = re.compile(r"([A-Za-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?=([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

DEFAULT_SCHEDULER_NAME = "topogpu-scheduler"


class SettingsError(ValueError):
    """A flag has a value that cannot be used; the message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where the extender's verbs are served. Port 0 lets the system choose."""

    host: str
    port: int


class FilterReturns(StrEnum):
    ONE = "one"
    """The best node, its GPUs reserved."""
    ALL = "all"
    """Every node that fits; kube-scheduler scores them, and the GPUs are chosen when it binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Times of one running extender, all below kube-scheduler's extender timeout of 30 s."""

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    filter_returns: FilterReturns = FilterReturns.ONE
    readyz_requires_leader: bool = False
    node_label_selector: str = ""
    """Nodes without these labels are as if they were not there."""
    node_lock_ttl_seconds: float = 300.0
    sync_wait_seconds: float = 5.0
    """How long `/filter` waits for the first lists before it says that it cannot answer yet."""
    bind_deadline_seconds: float = 20.0
    reservation_lease_seconds: float = 60.0
    bound_lease_seconds: float = 600.0
    """How long a written Binding counts from memory if the watch does not show it."""


def parse_listen_address(text: str) -> ListenAddress:
    """`host:port`, `[v6]:port` or `:port` (every interface). Raises SettingsError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise SettingsError(f"{text!r} is not an address to listen on; write host:port, for example 127.0.0.1:8080")
    return ListenAddress(host=host.removeprefix("[").removesuffix("]") or "0.0.0.0", port=int(port))


def parse_label_selector(text: str) -> str:
    """As the API server takes it: `key=value`, or a comma list. Raises SettingsError."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    for part in parts:
        if not _LABEL.fullmatch(part):
            raise SettingsError(f"{part!r} selects no label; write key=value, for example gpu=on")
    return ",".join(parts)


def parse_duration(text: str) -> float:
    """Seconds in a Go duration such as `5m`, `1m30s` or `500ms`. Raises SettingsError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise SettingsError(f"{text!r} is not a duration; write for example 5m, 90s or 1m30s")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise SettingsError(f"{text!r} is not a duration above zero")
    return seconds
