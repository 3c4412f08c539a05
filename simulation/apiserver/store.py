"""Objects, their versions and the log of changes that watches read (pure).

One counter numbers all writes, as etcd's revision does. The log keeps the object before and after each change: that
is enough to replay a watch, to see an object enter or leave a selector, and to page through the state of a moment ago.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from simulation.apiserver.errors import JsonObject, expired

Key = tuple[str, str]
"""Namespace (empty for cluster-wide kinds) and name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write: `before` is None for a new object, `after` for a removed one; `last` carries the write's version."""

    version: int
    key: Key
    before: JsonObject | None
    after: JsonObject | None
    last: JsonObject


@dataclass(frozen=True, slots=True)
class Backup:
    objects: Mapping[str, Mapping[Key, JsonObject]]
    version: int


class Store:
    """All objects by plural and key. Stored objects are never changed in place."""

    def __init__(self, *, history: int = 20_000) -> None:
        self._objects: dict[str, dict[Key, JsonObject]] = {}
        self._log: dict[str, list[Change]] = {}
        self._history = history
        self._compacted: dict[str, int] = {}
        self._floor = 0
        self.version = 1

    def get(self, plural: str, namespace: str, name: str) -> JsonObject | None:
        return self._objects.get(plural, {}).get((namespace, name))

    def objects(self, plural: str, namespace: str = "") -> list[JsonObject]:
        """Returns all objects, or those of one namespace, in the order of their keys."""
        held = self._objects.get(plural, {})
        return [held[key] for key in sorted(held) if not namespace or key[0] == namespace]

    def put(self, plural: str, item: JsonObject) -> JsonObject:
        """Stores a new or changed object under the next version and answers it as stored."""
        key = key_of(item)
        held = self._objects.setdefault(plural, {})
        stored = self._versioned(item)
        self._record(plural, Change(self.version, key, held.get(key), stored, stored))
        held[key] = stored
        return stored

    def remove(self, plural: str, namespace: str, name: str) -> JsonObject:
        """Removes an object; its last state carries the version of the removal. KeyError if there is none."""
        before = self._objects[plural].pop((namespace, name))
        last = self._versioned(before)
        self._record(plural, Change(self.version, (namespace, name), before, None, last))
        return last

    def changes_after(self, plural: str, version: int) -> list[Change]:
        """Returns what happened after `version`; 410 Expired if that is no longer known."""
        oldest = max(self._floor, self._compacted.get(plural, 0))
        if version < oldest:
            raise expired(f"too old resource version: {version} ({oldest})")
        log = self._log.get(plural, [])
        return log[bisect_right(log, version, key=lambda change: change.version) :]

    def objects_at(self, plural: str, version: int, namespace: str = "") -> list[JsonObject]:
        """Returns the objects as they were at `version`; 410 Expired if that is no longer known."""
        held = dict(self._objects.get(plural, {}))
        for change in reversed(self.changes_after(plural, version)):
            if change.before is None:
                held.pop(change.key, None)
            else:
                held[change.key] = change.before
        return [held[key] for key in sorted(held) if not namespace or key[0] == namespace]

    def compact(self, version: int | None = None) -> None:
        """Forgets the log up to `version` (all of it by default): older watches and pages are answered 410."""
        upto = self.version if version is None else version
        self._floor = max(upto, self._floor)
        for plural, log in self._log.items():
            self._log[plural] = [change for change in log if change.version > upto]

    def backup(self) -> Backup:
        return Backup({plural: dict(held) for plural, held in self._objects.items()}, self.version)

    def restore(self, backup: Backup) -> None:
        """Goes back to the backup: what was written since is lost, and its versions are given to what is written next.

        As an API server that has just started, it knows no history.
        """
        self._objects = {plural: dict(held) for plural, held in backup.objects.items()}
        self._log, self._compacted = {}, {}
        self.version = self._floor = backup.version

    def _versioned(self, item: JsonObject) -> JsonObject:
        self.version += 1
        return item | {"metadata": item["metadata"] | {"resourceVersion": str(self.version)}}

    def _record(self, plural: str, change: Change) -> None:
        log = self._log.setdefault(plural, [])
        log.append(change)
        if len(log) > 2 * self._history:
            self._compacted[plural] = log[-self._history - 1].version
            del log[: -self._history]


def key_of(item: JsonObject) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
