"""Normalizes an object as the API server does on every write, when it reads it into its type (pure).

Times that were left out are null, quantities canonical, texts of a Secret encoded; what no field of the type can hold
is refused. Unknown fields stay, because the types' definitions are not available here.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any

from simulation.apiserver.errors import JsonObject, NotOfItsType
from simulation.apiserver.kinds import CRON_JOB, EVENT, LEASE, NODE, POD, QUOTA, SECRET, WORKLOADS, ServedKind
from simulation.apiserver.quantities import amounts
from simulation.apiserver.workloads import typed_spec

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")


def as_typed(kind: ServedKind, item: JsonObject) -> JsonObject:
    """Raises NotOfItsType."""
    form = _FORMS.get(kind)
    typed = item | {"metadata": _metadata(item["metadata"])}
    return typed if form is None else form(typed)


def _metadata(metadata: JsonObject) -> JsonObject:
    for field in ("labels", "annotations"):
        entries = metadata.get(field)
        if entries is not None and not (
            isinstance(entries, dict) and all(isinstance(value, str) for value in entries.values())
        ):
            raise NotOfItsType(f"metadata.{field}: expected texts by name")
    return {key: value for key, value in metadata.items() if value not in ({}, [], None)}


def _object(item: JsonObject, field: str) -> JsonObject:
    value = item.get(field)
    if value is not None and not isinstance(value, dict):
        raise NotOfItsType(f"{field}: expected an object")
    return value or {}


def _objects(item: JsonObject, field: str) -> list[JsonObject]:
    value = item.get(field) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise NotOfItsType(f"{field}: expected a list of objects")
    return value


def _present(item: JsonObject) -> JsonObject:
    return {key: value for key, value in item.items() if value is not None}


def _pod(pod: JsonObject) -> JsonObject:
    spec = _present(_object(pod, "spec"))
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [_container(one) for one in _objects(spec, field)]
    return pod | {"spec": spec, "status": _conditions(_object(pod, "status"), "lastProbeTime")}


def _container(container: JsonObject) -> JsonObject:
    resources = _object(container, "resources")
    held = {part: amounts(resources[part]) for part in ("limits", "requests") if resources.get(part)}
    return container | {"resources": resources | held}


def _conditions(status: JsonObject, heartbeat: str) -> JsonObject:
    if "conditions" not in status:
        return status
    never = {heartbeat: None, "lastTransitionTime": None}
    return status | {"conditions": [never | one for one in _objects(status, "conditions")]}


def _workload(workload: JsonObject) -> JsonObject:
    return workload | {"spec": _templated(typed_spec(workload.get("spec")))}


def _cron_job(cron_job: JsonObject) -> JsonObject:
    spec = typed_spec(cron_job.get("spec"))
    job = spec.get("jobTemplate") or {}
    job = {"metadata": _metadata(job.get("metadata") or {}), "spec": _templated(_present(job.get("spec") or {}))}
    return cron_job | {"spec": spec | {"jobTemplate": job}}


def _templated(spec: JsonObject) -> JsonObject:
    """Returns the spec with its template of pods."""
    template = spec.get("template") or {}
    pod = _pod({"spec": template.get("spec")})
    return spec | {"template": {"metadata": _metadata(template.get("metadata") or {}), "spec": pod["spec"]}}


def _node(node: JsonObject) -> JsonObject:
    status = _conditions(_object(node, "status"), "lastHeartbeatTime")
    held = {part: amounts(status[part]) for part in ("capacity", "allocatable") if status.get(part)}
    return node | {"status": status | held}


def _quota(quota: JsonObject) -> JsonObject:
    spec, status = _object(quota, "spec"), _object(quota, "status")
    held = {part: amounts(status[part]) for part in ("hard", "used") if status.get(part)}
    return quota | {"spec": spec | {"hard": amounts(spec.get("hard") or {})}, "status": status | held}


def _event(event: JsonObject) -> JsonObject:
    for field in ("firstTimestamp", "lastTimestamp"):
        _check_time(event, field, _TIME)
    _check_time(event, "eventTime", _MICRO_TIME)
    times = dict.fromkeys(("firstTimestamp", "lastTimestamp", "eventTime"))
    return times | {"source": {}, "reportingComponent": "", "reportingInstance": ""} | event


def _lease(lease: JsonObject) -> JsonObject:
    spec = _object(lease, "spec")
    for field in ("acquireTime", "renewTime"):
        _check_time(spec, field, _MICRO_TIME)
    return lease | {"spec": spec}


def _check_time(item: JsonObject, field: str, form: re.Pattern[str]) -> None:
    value = item.get(field)
    if value is not None and not form.fullmatch(str(value)):
        raise NotOfItsType(f"parsing time {value!r}: cannot parse it as {field}")


def _secret(secret: JsonObject) -> JsonObject:
    data: dict[str, Any] = dict(_object(secret, "data"))
    for key, value in _object(secret, "stringData").items():
        data[key] = base64.b64encode(str(value).encode()).decode()
    for value in data.values():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise NotOfItsType(f"illegal base64 data: {error}") from error
    kept = {key: value for key, value in secret.items() if key != "stringData"}
    return kept | ({"data": data} if data else {})


_FORMS: Mapping[ServedKind, Callable[[JsonObject], JsonObject]] = {
    POD: _pod,
    NODE: _node,
    QUOTA: _quota,
    EVENT: _event,
    LEASE: _lease,
    SECRET: _secret,
    **dict.fromkeys(WORKLOADS, _workload),
    CRON_JOB: _cron_job,
}
