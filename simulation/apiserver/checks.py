"""Checks objects as the API server does, and names the field of a refusal (pure).

Source: Kubernetes API reference and "Object Names and IDs", "Labels and Selectors", "Taints and Tolerations".
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from proto.quantity import parse_quantity
from simulation.apiserver.errors import JsonObject, invalid
from simulation.apiserver.kinds import CRON_JOB, EVENT, LEASE, NAMESPACE, NODE, POD, SECRET, WORKLOADS, ServedKind
from simulation.apiserver.workload_rules import change_problems, workload_problems

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_LONGEST_NAME = 253
_LONGEST_LABEL = 63
_LONGEST_ANNOTATIONS_BYTES = 256 * 1024
_MUTABLE_POD_FIELDS = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
STANDARD_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")
_TLS = "kubernetes.io/tls"


def check(kind: ServedKind, item: JsonObject, before: JsonObject | None = None) -> None:
    """Refuses what may not be written, as a new object or in place of `before`. Raises ApiRefusal (422)."""
    problems = [*_metadata_problems(item["metadata"]), *_RULES.get(kind, _nothing)(item)]
    if before is not None:
        problems += _change_problems(kind, before, item)
    if problems:
        raise invalid(kind, str(item["metadata"]["name"]), *problems)


def check_metadata(kind: ServedKind, name: str, metadata: JsonObject) -> None:
    """Checks metadata; that of a Binding only for its size."""
    if problem := _size_problem(metadata.get("annotations") or {}):
        raise invalid(kind, name, problem)


def check_name(kind: ServedKind, name: str) -> None:
    """Refuses a name that is no DNS subdomain of at most 253 characters."""
    if len(name) > _LONGEST_NAME or not _SUBDOMAIN.fullmatch(name):
        raise invalid(kind, name, f'metadata.name: Invalid value: "{name}": {_SUBDOMAIN_RULE}')
    if kind is NAMESPACE and "." in name:
        raise invalid(kind, name, f'metadata.name: Invalid value: "{name}": must not contain dots')


def _metadata_problems(metadata: JsonObject, where: str = "metadata") -> Iterator[str]:
    for field in ("labels", "annotations"):
        for key in metadata.get(field) or {}:
            if not _is_qualified(key):
                yield f'{where}.{field}: Invalid value: "{key}": name part must consist of alphanumeric characters'
    for value in (metadata.get("labels") or {}).values():
        if len(value) > _LONGEST_LABEL:
            yield f'{where}.labels: Invalid value: "{value}": must be no more than {_LONGEST_LABEL} characters'
        elif value and not _NAME_PART.fullmatch(value):
            yield f'{where}.labels: Invalid value: "{value}": a valid label must consist of alphanumeric characters'
    if problem := _size_problem(metadata.get("annotations") or {}):
        yield problem
    for place, finalizer in enumerate(metadata.get("finalizers") or []):
        if finalizer not in STANDARD_FINALIZERS and ("/" not in finalizer or not _is_qualified(finalizer)):
            problem = "name is neither a standard finalizer name nor is it fully qualified"
            yield f'metadata.finalizers[{place}]: Invalid value: "{finalizer}": {problem}'


def _workload_problems(kind: ServedKind, workload: JsonObject) -> Iterator[str]:
    yield from workload_problems(kind, workload)
    spec, where = workload["spec"], "spec"
    if kind is CRON_JOB:
        spec, where = spec["jobTemplate"]["spec"], "spec.jobTemplate.spec"
    yield from _metadata_problems(spec["template"]["metadata"], f"{where}.template")


def _is_qualified(key: str) -> bool:
    """Returns a name, or a DNS subdomain and a name with a slash between them."""
    domain, slash, name = key.rpartition("/")
    return bool(_NAME_PART.fullmatch(name)) and (not slash or bool(_SUBDOMAIN.fullmatch(domain)))


def _size_problem(annotations: JsonObject) -> str:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    limit = _LONGEST_ANNOTATIONS_BYTES
    return f"metadata.annotations: Too long: may not be more than {limit} bytes" if size > limit else ""


def _nothing(_: JsonObject) -> Iterable[str]:
    return ()


def _pod_problems(pod: JsonObject) -> Iterator[str]:
    spec = pod["spec"]
    if not spec.get("containers"):
        yield "spec.containers: Required value"
    seen: Counter[str] = Counter()
    for field in ("initContainers", "containers"):
        for place, container in enumerate(spec.get(field) or []):
            where, name = f"spec.{field}[{place}]", str(container.get("name") or "")
            yield from _container_problems(where, name, container)
            if name and seen[name]:
                yield f'{where}.name: Duplicate value: "{name}"'
            seen[name] += 1


def _container_problems(where: str, name: str, container: JsonObject) -> Iterator[str]:
    if not name:
        yield f"{where}.name: Required value"
    elif len(name) > _LONGEST_LABEL or not re.fullmatch(_LABEL, name):
        yield f'{where}.name: Invalid value: "{name}": a lowercase RFC 1123 label is required'
    if not container.get("image"):
        yield f"{where}.image: Required value"
    held = {part: container["resources"].get(part) or {} for part in ("limits", "requests")}
    for part, amounts in held.items():
        for resource, amount in amounts.items():
            if "/" in resource and parse_quantity(amount).denominator != 1:
                yield f'{where}.resources.{part}[{resource}]: Invalid value: "{amount}": must be an integer'
    for resource, amount in held["requests"].items():
        if "/" not in resource or held["limits"].get(resource) == amount:
            continue
        if resource in held["limits"]:
            limit = held["limits"][resource]
            yield f'{where}.resources.requests: Invalid value: "{amount}": must be equal to {resource} limit of {limit}'
        else:
            yield f"{where}.resources.limits: Required value: Limit must be set for non overcommitable resources"


def _node_problems(node: JsonObject) -> Iterator[str]:
    for place, taint in enumerate(node["spec"].get("taints") or []):
        if taint.get("effect") not in _EFFECTS:
            allowed = ", ".join(f'"{effect}"' for effect in _EFFECTS)
            told = f'"{taint.get("effect", "")}": supported values: {allowed}'
            yield f"metadata.taints[{place}].effect: Unsupported value: {told}"


def _event_problems(event: JsonObject) -> Iterator[str]:
    """An event lies with its object; that of an object without a namespace in `default`."""
    about = (event.get("involvedObject") or {}).get("namespace") or ""
    own = event["metadata"]["namespace"]
    if own != (about or "default"):
        yield f'involvedObject.namespace: Invalid value: "{about}": does not match event.namespace'


def _lease_problems(lease: JsonObject) -> Iterator[str]:
    seconds = lease["spec"].get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        yield f"spec.leaseDurationSeconds: Invalid value: {seconds}: must be greater than 0"


def _secret_problems(secret: JsonObject) -> Iterator[str]:
    if secret.get("type") == _TLS:
        for key in ("tls.crt", "tls.key"):
            if key not in (secret.get("data") or {}):
                yield f"data[{key}]: Required value"


_RULES: Mapping[ServedKind, Callable[[JsonObject], Iterable[str]]] = {
    POD: _pod_problems,
    NODE: _node_problems,
    EVENT: _event_problems,
    LEASE: _lease_problems,
    SECRET: _secret_problems,
    **{kind: partial(_workload_problems, kind) for kind in WORKLOADS},
}


def _change_problems(kind: ServedKind, before: JsonObject, after: JsonObject) -> Iterator[str]:
    old, new = before["metadata"].get("finalizers") or [], after["metadata"].get("finalizers") or []
    if before["metadata"].get("deletionTimestamp") and set(new) - set(old):
        problem = "no new finalizers can be added if the object is being deleted"
        yield f"metadata.finalizers: Forbidden: {problem}, found new finalizers {sorted(set(new) - set(old))}"
    if kind in WORKLOADS:
        yield from change_problems(kind, before, after)
    if kind is SECRET and before.get("type") != after.get("type"):
        yield f'type: Invalid value: "{after.get("type")}": field is immutable'
    if kind is POD and _fixed_part(before["spec"]) != _fixed_part(after["spec"]):
        # The node is set by a Binding only.
        allowed = "`spec.containers[*].image`,`spec.initContainers[*].image`," + ",".join(
            f"`spec.{field}`" for field in _MUTABLE_POD_FIELDS
        )
        yield f"spec: Forbidden: pod updates may not change fields other than {allowed}"


def _fixed_part(spec: JsonObject) -> JsonObject:
    fixed = {key: value for key, value in spec.items() if key not in _MUTABLE_POD_FIELDS}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{key: value for key, value in one.items() if key != "image"} for one in fixed[field]]
    return fixed
