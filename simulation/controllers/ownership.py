"""Ownership of objects: adoption, release, and the deletion of an owner (pure).

Sources: Kubernetes documentation, "Garbage Collection", and "ReplicaSet" on acquisition of pods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from simulation.apiserver.kinds import BY_NAME
from simulation.apiserver.selectors import selects
from simulation.controllers.steps import (
    ControllerWrite,
    Delete,
    JsonObject,
    Step,
    has_ended,
    is_leaving,
    labels_of,
    name_of,
    owner_of,
    reference_to,
    uid_of,
)

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
"""Finalizers of an owner: they hold it until its own are released, or gone."""
_SELECTED = {
    "deployments": "replicasets",
    "replicasets": "pods",
    "statefulsets": "pods",
    "daemonsets": "pods",
    "jobs": "pods",
}
"""The kind that the selector of an owner selects."""

Objects = Mapping[str, Sequence[JsonObject]]
"""All objects, by the plural of their kind."""


def collected(objects: Objects) -> Iterator[Step]:
    """Deletes what is left of owners that are gone, and frees owners that wait for their own."""
    there = {uid_of(item): (plural, item) for plural, items in objects.items() for item in items}
    held: dict[str, list[tuple[str, JsonObject]]] = {}
    for plural, item in there.values():
        owners = [one for one in item["metadata"].get("ownerReferences") or [] if one["kind"] in BY_NAME]
        for owner in owners:
            held.setdefault(owner["uid"], []).append((plural, item))
        if owners and not is_leaving(item) and not any(owner["uid"] in there for owner in owners):
            yield Delete(plural, item)
    for plural, item in there.values():
        if is_leaving(item):
            yield from _freed(plural, item, held.get(uid_of(item), ()))


def _freed(plural: str, owner: JsonObject, own: Iterable[tuple[str, JsonObject]]) -> Iterator[Step]:
    finalizers = owner["metadata"].get("finalizers") or []
    if ORPHAN in finalizers:
        for kind, item in own:
            yield _written(kind, item, [one for one in _references(item) if one["uid"] != uid_of(owner)])
        own = ()
    elif FOREGROUND in finalizers:
        own = [(kind, item) for kind, item in own if _blocks(item, owner)]
        for kind, item in own:
            if not is_leaving(item):
                yield Delete(kind, item, "Foreground")
    kept = [one for one in finalizers if one not in (ORPHAN, FOREGROUND)]
    if not own and kept != finalizers:
        yield ControllerWrite(plural, owner, {"metadata": {"finalizers": kept}})


def _blocks(item: JsonObject, owner: JsonObject) -> bool:
    return any(one["uid"] == uid_of(owner) and one.get("blockOwnerDeletion") for one in _references(item))


def claims(objects: Objects) -> Iterator[tuple[JsonObject, Step]]:
    """Yields owners with what they adopt, because they select it and it has no owner, and what they release."""
    owners = {uid_of(one): (plural, one) for plural in _SELECTED for one in objects[plural] if not is_leaving(one)}
    for kind in dict.fromkeys(_SELECTED.values()):
        for item in objects[kind]:
            if is_leaving(item):
                continue
            reference = owner_of(item)
            if reference is not None:
                plural, owner = owners.get(reference["uid"], ("", {}))
                if _SELECTED.get(plural) == kind and not _selects(owner, item):
                    yield owner, _written(kind, item, [one for one in _references(item) if one != reference])
                continue
            for plural, owner in owners.values():
                if _SELECTED[plural] == kind and _selects(owner, item) and _may_adopt(plural, owner, item):
                    yield owner, _written(kind, item, [*_references(item), reference_to(owner)])
                    break


def _selects(owner: JsonObject, item: JsonObject) -> bool:
    same = owner["metadata"]["namespace"] == item["metadata"]["namespace"]
    return same and selects(owner["spec"].get("selector"), labels_of(item))


def _may_adopt(plural: str, owner: JsonObject, item: JsonObject) -> bool:
    if plural == "statefulsets":
        return name_of(item).rpartition("-")[0] == name_of(owner)
    return plural == "jobs" or not has_ended(item)


def _references(item: JsonObject) -> list[JsonObject]:
    return list(item["metadata"].get("ownerReferences") or [])


def _written(plural: str, item: JsonObject, references: list[JsonObject]) -> Step:
    return ControllerWrite(plural, item, {"metadata": {"ownerReferences": references}})
