"""Reads clusters and pods as `kubectl get … -o json` writes them, for decisions without a cluster."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from proto.decoding import converted
from proto.kubernetes.objects import Node, Object, Pod, ResourceQuota
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.requests import RequestSettings

T = TypeVar("T", bound=Object)

_HOW = "write it with kubectl get nodes,pods,resourcequotas -A -o json"


_LONGEST_FLOW = 2**20
"""YAML may begin with a brace, too. In a longer text that is a broken JSON, which would be read as YAML for minutes."""


class StateError(ValueError):
    """A document does not hold what it should. The message is one sentence with the place."""


def read_document(file: str) -> object:
    """Returns the JSON or YAML of a file; `-` is standard input. Raises StateError."""
    return read_documents(file)[0]


def read_documents(file: str) -> list[object]:
    """Returns the JSON or the YAML documents of a file, at least one; `-` is standard input. Raises StateError."""
    text = read_text(file)
    try:
        return _documents(text) or [None]
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise StateError(f"{file}: neither JSON nor YAML: {problem}") from error


def _documents(text: str) -> list[object]:
    if text.lstrip().startswith("{"):
        try:
            return [json.loads(text)]
        except ValueError:
            if len(text) > _LONGEST_FLOW:
                raise
    return list(yaml.safe_load_all(text))


def read_text(file: str) -> str:
    """Returns the text of a file; `-` is standard input. Raises StateError."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise StateError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StateError(f"{file}: is not UTF-8 text") from error


def read_state(document: object, where: str, settings: RequestSettings) -> tuple[Ledger, list[str]]:
    """Returns the ledger, and the names of all nodes in the order of the document. Raises StateError."""
    nodes: list[Node] = []
    pods: list[Pod] = []
    quotas: list[ResourceQuota] = []
    for kind, item, place in listed(document, where):
        if kind == "Node":
            nodes.append(typed(item, Node, place))
        elif kind == "Pod":
            pods.append(typed(item, Pod, place))
        elif kind == "ResourceQuota":
            quotas.append(typed(item, ResourceQuota, place))
    if not nodes:
        raise StateError(f"{where}: lists no node; {_HOW}")
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    ledger.replace_pods(pods)
    ledger.quotas.replace(quotas)
    return ledger, [node.metadata.name for node in nodes]


def read_snapshot(document: object, where: str) -> Snapshot:
    """Returns a snapshot that the running extender wrote. Raises StateError."""
    if not isinstance(document, dict) or "nodes" not in document:
        raise StateError(f"{where}: holds no snapshot; write it with curl http://127.0.0.1:8080/debug/snapshot")
    try:
        return converted(document, Snapshot)
    except msgspec.ValidationError as error:
        raise StateError(f"{where}: {error}") from error


def listed(document: object, where: str) -> Iterable[tuple[str, object, str]]:
    """Yields kind, object and place of every item of a list. Raises StateError."""
    items = document.get("items") if isinstance(document, dict) else None
    if isinstance(document, dict) and document.get("kind") == "Node":
        items = [document]
    if not isinstance(items, list):
        raise StateError(f"{where}: no list of objects; {_HOW}")
    for position, item in enumerate(items):
        place = f"{where}: items[{position}]"
        kind = item.get("kind") if isinstance(item, dict) else None
        if not isinstance(kind, str):
            raise StateError(f"{place}: has no kind")
        yield kind, item, place


def typed(document: object, kind: type[T], where: str) -> T:
    """Returns the document as an object of this kind. Raises StateError."""
    try:
        return converted(document, kind)
    except msgspec.ValidationError as error:
        raise StateError(f"{where}: {error}") from error
    except RecursionError as error:
        raise StateError(f"{where}: contains itself") from error
