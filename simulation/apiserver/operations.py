"""The API's verbs on the store (no IO; the clock and the randomness are passed in)."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain

from simulation.apiserver import apply, checks, defaults, evictions, patches
from simulation.apiserver.errors import (
    ApiRefusal,
    JsonObject,
    NotOfItsType,
    already_exists,
    bad_request,
    conflict,
    conflict_on,
    expired,
    forbidden,
    invalid,
    invalid_object,
    invalid_patch,
    not_found,
)
from simulation.apiserver.kinds import BUDGET, KINDS, NAMESPACE, POD, WORKLOADS, ServedKind
from simulation.apiserver.routes import Target
from simulation.apiserver.selectors import Selector
from simulation.apiserver.store import Store, key_of
from simulation.apiserver.typed import as_typed
from simulation.apiserver.workloads import scale_of, scaled_replicas

OBJECT_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
OTHER_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"
_KEPT_NAMESPACES = ("default", "kube-public", "kube-system")
_KEPT_METADATA = (
    *("name", "namespace", "uid", "creationTimestamp", "generation"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)


Webhook = Callable[[JsonObject], tuple[JsonObject, Sequence[str]]]
"""Returns the pod as it is to be stored, and warnings for its author. Raises ApiRefusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list, taken from the state at `version`."""

    items: list[JsonObject]
    version: int
    continue_: str = ""
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class Operations:
    """The verbs. `longest_grace_seconds` caps every pod's grace, so that tests need not wait for 30 s."""

    store: Store
    now: Callable[[], datetime]
    new_uid: Callable[[], str]
    longest_grace_seconds: int = 30
    webhooks: list[Webhook] = field(default_factory=list)
    """Functions that complete or refuse new pods, one after the other."""
    warnings: list[str] = field(default_factory=list)
    """Warnings for the author of the request at hand. The server sends and forgets them."""

    def get(self, target: Target) -> JsonObject:
        found = self.store.get(target.kind.plural, target.namespace, target.name)
        if found is None:
            raise not_found(target.kind, target.name)
        return scale_of(found) if target.subresource == "scale" else found

    def page(
        self, target: Target, chosen: Selector, *, limit: int = 0, continue_: str = "", version: int | None = None
    ) -> Page:
        """Returns a page of at most `limit` objects (0: all); `version` requests the state of that moment."""
        start: tuple[str, str] | None = None
        if continue_:
            version, start = _read_continue(continue_)
        at = self.store.version if version is None else version
        self.check_reached(at)
        held = self._held_at(target, at)
        items = [item for item in held if chosen(item) and (start is None or key_of(item) > start)]
        if not limit or len(items) <= limit:
            return Page(items=items, version=at)
        token = json.dumps({"v": at, "after": key_of(items[limit - 1])}).encode()
        return Page(
            items=items[:limit],
            version=at,
            continue_=base64.urlsafe_b64encode(token).decode(),
            remaining=len(items) - limit,
        )

    def check_reached(self, version: int) -> None:
        """Raises Raises 504 for a version that is still to come."""
        if version > self.store.version:
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            problem = f"Timeout: Too large resource version: {version}, current: {self.store.version}"
            raise ApiRefusal(504, "Timeout", problem, {"causes": [cause], "retryAfterSeconds": 1})

    def _held_at(self, target: Target, version: int) -> list[JsonObject]:
        if version == self.store.version:
            return _only(target, self.store.objects(target.kind.plural, target.namespace))
        try:
            return _only(target, self.store.objects_at(target.kind.plural, version, target.namespace))
        except ApiRefusal as e:
            problem = "The provided continue parameter is too old to display a consistent list result"
            raise expired(f"{problem}; start a new list without it") from e

    def create(self, target: Target, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """Stores a new object: name, uid and defaults filled in. 409 if it exists, 404 without its namespace."""
        kind, item = target.kind, self._identified(target, body)
        namespace, name = key_of(item)
        if namespace and self.store.get("namespaces", "", namespace) is None:
            raise not_found(NAMESPACE, namespace)
        classes = {c["metadata"]["name"]: int(c.get("value", 0)) for c in self.store.objects("priorityclasses")}
        try:
            item = as_typed(kind, item)
        except NotOfItsType as e:
            handled = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
            raise bad_request(f"{handled}: {e}") from e
        item = defaults.written_object(kind, defaults.new_object(kind, item, classes))
        for webhook in self.webhooks if kind is POD else ():
            completed, warnings = webhook(item)
            item = defaults.written_object(kind, as_typed(kind, completed))
            self.warnings.extend(warnings)
        checks.check(kind, item)
        if self.store.get(kind.plural, namespace, name) is not None:
            raise already_exists(kind, name)
        return item if dry_run else self.store.put(kind.plural, item)

    def _identified(self, target: Target, body: JsonObject) -> JsonObject:
        kind = target.kind
        metadata = dict(_metadata_of(body))
        if body.get("kind", kind.kind) != kind.kind or body.get("apiVersion", kind.group_version) != kind.group_version:
            given = f'{body.get("kind")} in version "{body.get("apiVersion")}"'
            raise bad_request(f"{given} cannot be handled as a {kind.kind}")
        if metadata.get("resourceVersion"):
            raise ApiRefusal(500, "", "resourceVersion should not be set on objects to be created")
        uid = self.new_uid()
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise invalid(kind, "", "metadata.name: Required value: name or generateName is required")
            drawn = (
                metadata["generateName"] + one.replace("-", "")[:5] for one in chain([uid], iter(self.new_uid, ""))
            )
            metadata["name"] = next(name for name in drawn if not self.store.get(kind.plural, target.namespace, name))
        checks.check_name(kind, metadata["name"])
        own = metadata.pop("namespace", None) or target.namespace
        if kind.namespaced:
            if own != target.namespace:
                raise bad_request(OTHER_NAMESPACE)
            metadata["namespace"] = own
        metadata |= {"uid": uid, "creationTimestamp": timestamp(self.now())}
        if kind.counts_changes:
            metadata["generation"] = 1
        return {"kind": kind.kind, "apiVersion": kind.group_version} | body | {"metadata": metadata}

    def update(self, target: Target, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """Replaces the object, its status only, or its number of replicas; a resourceVersion or uid in the body must
        be the current one.
        """
        if target.subresource == "scale":
            return self._scaled(target, body, dry_run=dry_run)
        before, kind = self.get(target), target.kind
        metadata = _metadata_of(body)
        _check_addressed(target, metadata)
        if not metadata.get("resourceVersion") and not kind.unconditional:
            problem = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise invalid_object(kind.plural, kind.group, target.name, problem)
        _check_preconditions(target, before, metadata)
        after = _kept_parts(kind, before, body, status=target.subresource == "status")
        try:
            after = as_typed(kind, after)
        except NotOfItsType as e:
            raise bad_request(str(e)) from e
        after = defaults.written_object(kind, after)
        checks.check(kind, after, before)
        if kind.counts_changes and after.get("spec") != before.get("spec"):
            after = after | {"metadata": after["metadata"] | {"generation": before["metadata"]["generation"] + 1}}
        if _without_version(after) == _without_version(before):
            return before
        if dry_run:
            return after
        if _is_finished_deletion(after):
            return self.store.remove(target.kind.plural, *key_of(before))
        return self.store.put(target.kind.plural, after)

    def _scaled(self, target: Target, body: JsonObject, *, dry_run: bool) -> JsonObject:
        whole = replace(target, subresource="")
        before = self.get(whole)
        _check_addressed(target, _metadata_of(body))
        after = before | {"spec": before["spec"] | {"replicas": scaled_replicas(target.kind, body)}}
        version = _metadata_of(body).get("resourceVersion")
        if version:
            after["metadata"] = after["metadata"] | {"resourceVersion": version}
        return scale_of(self.update(whole, after, dry_run=dry_run))

    def apply(
        self, target: Target, body: JsonObject, manager: str, *, dry_run: bool = False
    ) -> tuple[JsonObject, bool]:
        """Applies on the side of the server. Returns the object, and whether it is new."""
        if not manager:
            problem = "fieldManager: Required value: is required for apply patch"
            raise invalid_object("PatchOptions", "meta.k8s.io", "", problem)
        if _metadata_of(body).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if target.subresource not in {"", "status"}:
            raise ApiRefusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        before = self.store.get(target.kind.plural, target.namespace, target.name)
        after = apply.applied(before, body, manager)
        if before is None:
            return self.create(replace(target, name=""), after, dry_run=dry_run), True
        _check_patched(target, before, after)
        return self.update(target, after, dry_run=dry_run), False

    def bind(self, target: Target, binding: JsonObject) -> None:
        """Gives a pod its node and merges the binding's labels and annotations, in one write. 409 if it has one."""
        pod = self.get(target)
        metadata = _metadata_of(binding)
        _check_preconditions(target, pod, metadata)
        self.store.put(target.kind.plural, bound(pod, binding, timestamp(self.now())))

    def patch(self, target: Target, body: object, media_type: str, *, dry_run: bool = False) -> JsonObject:
        """Applies a patch of the media type; a resourceVersion in the patched object must be the current one."""
        before = self.get(target)
        if media_type == "application/json-patch+json":
            if not isinstance(body, list):
                raise bad_request("a JSON patch is a list of operations")
            after = patches.json_patch(before, body)
        elif not isinstance(body, dict):
            raise bad_request("a merge patch is a JSON object")
        elif media_type == "application/merge-patch+json":
            after = patches.merge(before, body)
        elif media_type == "application/strategic-merge-patch+json":
            after = patches.strategic(before, body)
        else:
            raise ApiRefusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        _check_patched(target, before, after)
        return self.update(target, after, dry_run=dry_run)

    def delete(self, target: Target, options: JsonObject, *, dry_run: bool = False) -> tuple[JsonObject, bool]:
        """Returns the object and whether it is gone; a bound pod or one with finalizers is first marked."""
        before = self.get(target)
        _check_deleted(target, before["metadata"], options.get("preconditions") or {})
        grace = self._grace_seconds(target.kind, before, options)
        metadata = _with_propagation(target.kind, before["metadata"], options)
        if dry_run:
            return before, True
        finished = grace == 0 and not metadata.get("finalizers")
        shortened = grace < int(metadata.get("deletionGracePeriodSeconds", 0))
        if metadata.get("deletionTimestamp") and not (finished or shortened or metadata != before["metadata"]):
            return before, False
        if target.kind is POD or not finished:
            # A pod is always marked first: its watchers see two changes.
            marked = {
                "deletionTimestamp": timestamp(self.now() + timedelta(seconds=grace)),
                "deletionGracePeriodSeconds": grace,
            }
            before = self.store.put(target.kind.plural, before | {"metadata": metadata | marked})
        return (self.store.remove(target.kind.plural, *key_of(before)), True) if finished else (before, False)

    def evict(self, target: Target, eviction: JsonObject, *, dry_run: bool = False) -> None:
        """Deletes a pod if its budget allows it; one that is not running yet or any more costs no budget."""
        options = eviction.get("deleteOptions") or {}
        dry_run = dry_run or bool(options.get("dryRun"))
        pod, at = self.get(target), timestamp(self.now())
        _check_deleted(target, pod["metadata"], options.get("preconditions") or {})
        free = pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("phase") != "Running"
        budgets = [] if free else self.store.objects(BUDGET.plural, target.namespace)
        budget = evictions.budget_of(pod, budgets)
        charged = evictions.charged(budget, pod, at) if budget and evictions.costs(pod, budget) else None
        if dry_run:
            return
        if charged is not None:
            self.store.put(BUDGET.plural, charged)
        self.store.put(target.kind.plural, evictions.disrupted(pod, at))
        self.delete(target, options)

    def _grace_seconds(self, kind: ServedKind, item: JsonObject, options: JsonObject) -> int:
        """Only a pod that is bound and not finished gets time to stop."""
        phase = (item.get("status") or {}).get("phase")
        if kind is not POD or not item["spec"].get("nodeName") or phase in {"Succeeded", "Failed"}:
            return 0
        wanted = options.get("gracePeriodSeconds")
        seconds = int(item["spec"].get("terminationGracePeriodSeconds", 30) if wanted is None else wanted)
        return min(1 if seconds < 0 else seconds, self.longest_grace_seconds)

    def finish_deletions(self) -> list[JsonObject]:
        """Removes the pods whose grace is over (what kubelet or the pod garbage collector would do)."""
        now = timestamp(self.now())
        due = [
            item
            for item in self.store.objects("pods")
            if item["metadata"].get("deletionTimestamp", "~") <= now and not item["metadata"].get("finalizers")
        ]
        return [self.store.remove("pods", *key_of(item)) for item in due]

    def empty_namespace(self, namespace: str) -> None:
        """Removes all that lies in a namespace."""
        for kind in KINDS:
            for item in self.store.objects(kind.plural, namespace) if kind.namespaced else ():
                self.store.remove(kind.plural, *key_of(item))


def bound(pod: JsonObject, binding: JsonObject, at: str) -> JsonObject:
    """Returns the pod on the binding's node; 409 while it is bound, gated or being deleted."""
    name = pod["metadata"]["name"]
    wanted = (binding.get("target") or {}).get("name", "")
    if not wanted:
        raise ApiRefusal(500, "", "target.name: Required value")
    if (binding["target"].get("kind") or "Node") != "Node":
        problem = f'target.kind: Unsupported value: "{binding["target"]["kind"]}": supported values: "Node", "<empty>"'
        raise ApiRefusal(500, "", problem)
    for problem in _binding_problems(pod):
        raise conflict_on("pods/binding", name, problem)
    metadata, added = dict(pod["metadata"]), binding["metadata"]
    checks.check_metadata(POD, name, added)
    for part in ("labels", "annotations"):
        if added.get(part):
            metadata[part] = {**(metadata.get(part) or {}), **added[part]}
    condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": at}
    status = patches.strategic(pod.get("status") or {}, {"conditions": [condition]})
    for one in status["conditions"]:
        if one["type"] == "PodScheduled":
            one.pop("reason", None)
            one.pop("message", None)
    return pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": wanted}, "status": status}


def _binding_problems(pod: JsonObject) -> list[str]:
    name, spec = pod["metadata"]["name"], pod["spec"]
    problems = []
    if pod["metadata"].get("deletionTimestamp"):
        problems.append(f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        problems.append(f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        problems.append(f"pod {name} has non-empty .spec.schedulingGates")
    return problems


def timestamp(moment: datetime) -> str:
    """Returns RFC 3339 in UTC, whole seconds, as object metadata carries it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _only(target: Target, items: list[JsonObject]) -> list[JsonObject]:
    return [item for item in items if item["metadata"]["name"] == target.name] if target.name else items


def _metadata_of(body: JsonObject) -> JsonObject:
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata: expected a JSON object")
    return metadata


def _check_addressed(target: Target, metadata: JsonObject) -> None:
    """The object in a body is the one in the URL; it need not name its namespace."""
    name = metadata.get("name")
    if not name:
        raise bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided"
        )
    if name != target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
    if (metadata.get("namespace") or target.namespace) != target.namespace and target.kind.namespaced:
        raise bad_request(OTHER_NAMESPACE)


def _check_preconditions(target: Target, before: JsonObject, wanted: JsonObject) -> None:
    current = before["metadata"]
    if wanted.get("uid") and wanted["uid"] != current["uid"]:
        problem = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {current['uid']}"
        raise conflict(target.kind, target.name, problem)
    if wanted.get("resourceVersion") and wanted["resourceVersion"] != current["resourceVersion"]:
        raise conflict(target.kind, target.name, OBJECT_MODIFIED)


def _check_patched(target: Target, before: JsonObject, after: object) -> None:
    """Checks what a patch leaves. A patch for an object that has gone changes no later one of the name."""
    if not isinstance(after, dict):
        raise invalid_patch("it leaves no object")
    if (after.get("kind"), after.get("apiVersion")) != (before["kind"], before["apiVersion"]):
        raise invalid_patch(f"{after.get('kind')} is not {before['kind']}")
    uid = _metadata_of(after).get("uid")
    if uid and uid != before["metadata"]["uid"]:
        raise invalid(target.kind, target.name, f'metadata.uid: Invalid value: "{uid}": field is immutable')
    _check_addressed(target, _metadata_of(after))
    try:
        as_typed(target.kind, after)
    except NotOfItsType as e:
        raise invalid_patch(str(e)) from e


def _check_deleted(target: Target, current: JsonObject, wanted: JsonObject) -> None:
    if target.kind is NAMESPACE and target.name in _KEPT_NAMESPACES:
        raise forbidden(NAMESPACE, target.name, "this namespace may not be deleted")
    for part, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(part) and wanted[part] != current[part]:
            problem = f"the {name} in the precondition ({wanted[part]}) does not match the {name} in record"
            raise conflict_on(target.kind.kind, target.name, f"{problem} ({current[part]})")


def _with_propagation(kind: ServedKind, metadata: JsonObject, options: JsonObject) -> JsonObject:
    """Returns the metadata with the finalizer that lets the controllers see to what the object owns."""
    policy = options.get("propagationPolicy")
    if kind not in WORKLOADS or not policy:
        return metadata
    finalizer = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}.get(policy)
    kept = [one for one in metadata.get("finalizers") or [] if one not in checks.STANDARD_FINALIZERS]
    return metadata | {"finalizers": [*kept, *([finalizer] if finalizer else [])]}


def _read_continue(token: str) -> tuple[int, tuple[str, str]]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token))
        namespace, name = content["after"]
        return int(content["v"]), (str(namespace), str(name))
    except (binascii.Error, ValueError, KeyError, TypeError) as e:
        raise bad_request("continue key is not valid") from e


def _kept_parts(kind: ServedKind, before: JsonObject, body: JsonObject, *, status: bool) -> JsonObject:
    """Returns the body with the identity of `before`, and with its status or all but its status."""
    old = before["metadata"]
    metadata = {key: value for key, value in _metadata_of(body).items() if key not in _KEPT_METADATA}
    metadata |= {key: old[key] for key in _KEPT_METADATA if key in old}
    metadata["resourceVersion"] = old["resourceVersion"]
    after = {"kind": kind.kind, "apiVersion": kind.group_version} | body | {"metadata": metadata}
    if status:
        return before | {"metadata": metadata, "status": body.get("status") or {}}
    if kind.has_status:
        after["status"] = before.get("status") or {}
    return after


def _without_version(item: JsonObject) -> JsonObject:
    metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion" and value != {}}
    return item | {"metadata": metadata}


def _is_finished_deletion(item: JsonObject) -> bool:
    metadata = item["metadata"]
    finished = metadata.get("deletionGracePeriodSeconds", 0) == 0 and not metadata.get("finalizers")
    return bool(metadata.get("deletionTimestamp")) and finished
