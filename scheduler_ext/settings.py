"""What `serve` is told by its flags, checked once."""

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import urlsplit

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_LABEL = re.compile(r"([A-Za-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?=([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?")
_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_RESOURCE = re.compile(_SUBDOMAIN + r"/[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_SECONDS = 366 * 24 * 3600.0

DEFAULT_SCHEDULER_NAME = "topogpu-scheduler"

LONGEST_LOCK_WAIT_SECONDS = 22.0
"""With the wait for the first lists and the write it stays below the 30 s that kube-scheduler waits for an extender."""
SHORTEST_BIND_DEADLINE_SECONDS = 20.0
SLACK_SECONDS = 5.0
"""For a Binding that was long on its way."""
_WRITING_SECONDS = 2.0
"""What a bind has left for its write when the lock comes at the last moment."""


class SettingsError(ValueError):
    """A flag has a value that cannot be used; the message is one sentence."""


class FilterReturns(StrEnum):
    ONE = "one"
    """The best node, its GPUs reserved."""
    ALL = "all"
    """The best nodes, on each its GPUs reserved until kube-scheduler has chosen one."""


class MetricsDetail(StrEnum):
    """What a page has series of: each with those after it."""

    PODS = "pods"
    GPUS = "gpus"
    NODES = "nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Times of one running extender, all below kube-scheduler's extender timeout of 30 s."""

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    filter_returns: FilterReturns = FilterReturns.ONE
    gpu_preemption: bool = False
    """Whether we evict pods of lower priority for pods that lack nothing but GPUs."""
    readyz_requires_leader: bool = False
    kube_scheduler_healthz: str = ""
    """URL on this host; empty where kubelet does not ask us how kube-scheduler is."""
    node_label_selector: str = ""
    """Nodes without these labels are as if they were not there."""
    node_lock_ttl_seconds: float = 300.0
    lock_wait_seconds: float = 18.0
    """How long a bind waits for a lock that another pod holds."""
    sync_wait_seconds: float = 5.0
    """How long `/filter` waits for the first lists before it says that it cannot answer yet."""
    bind_deadline_seconds: float = SHORTEST_BIND_DEADLINE_SECONDS
    binding_seconds: float = 5.0
    """After which an unanswered Binding is sent again, or less where the API server is given less time. The next leader
    waits twice as long for the Bindings of one that crashed.
    """
    reservation_lease_seconds: float = 60.0
    """The longest time between `/filter` and `/bind` for which GPUs are held."""
    bound_lease_seconds: float = 600.0
    """How long a written Binding counts from memory if the watch does not show it."""
    settle_seconds: float = 65.0
    """Until a Binding whose answer was lost is looked for. kube-apiserver drops what it has not carried out after
    --request-timeout, 60 s by default; given back any sooner, the GPUs could go to two pods.
    """
    metrics_detail: MetricsDetail = MetricsDetail.PODS
    legacy_metrics: bool = False


def bind_deadline_seconds(lock_wait_seconds: float) -> float:
    """For a bind that may wait so long for a lock."""
    return max(SHORTEST_BIND_DEADLINE_SECONDS, lock_wait_seconds + _WRITING_SECONDS)


def checked_local_url(text: str, flag: str) -> str:
    """An http:// or https:// URL of this host; also empty. Raises SettingsError."""
    where = urlsplit(text)
    if text and (where.scheme not in ("http", "https") or not _is_loopback(where.hostname or "")):
        raise SettingsError(f"{flag} {text!r} is no URL of this host, such as https://127.0.0.1:10259/healthz")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def checked_name(text: str, flag: str) -> str:
    """The name of an object or host; also empty. Raises SettingsError."""
    if text and not re.fullmatch(_SUBDOMAIN, text):
        raise SettingsError(f"{flag} {text!r} is no name: lower-case letters, digits, - and . are allowed")
    return text


def checked_resource(text: str, flag: str) -> str:
    """The name of a resource that pods ask for. Raises SettingsError."""
    if not _RESOURCE.fullmatch(text):
        raise SettingsError(f"{flag} {text!r} is no name of a resource, such as nvidia.com/gpu")
    return text


def parse_label_selector(text: str) -> str:
    """As the API server takes it: `key=value`, or a comma list. Raises SettingsError."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    for part in parts:
        if not _LABEL.fullmatch(part):
            raise SettingsError(f"{part!r} selects no label; write key=value, for example gpu=on")
    return ",".join(parts)


def parse_duration(text: str, *, may_be_zero: bool = False) -> float:
    """Seconds in a Go duration such as `5m`, `1m30s` or `500ms`; `0` needs no unit. Raises SettingsError."""
    if may_be_zero and text == "0":
        return 0.0
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise SettingsError(f"{text!r} is not a duration; write for example 5m, 90s or 1m30s")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    if seconds <= 0 and not may_be_zero:
        raise SettingsError(f"{text!r} is not a duration above zero")
    if seconds > _LONGEST_SECONDS:
        raise SettingsError(f"{text!r} is longer than a year; write for example 5m, 90s or 1m30s")
    return seconds
