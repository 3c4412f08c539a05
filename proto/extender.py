"""Reads and writes the JSON between kube-scheduler and an extender (extender/v1): Go's capitalised names, read in any
case.

The Pod and Node objects inside keep the usual camel case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

import msgspec

from proto.decoding import decoded
from proto.kubernetes.objects import Node, Object, Pod
from proto.kubernetes.wire import NotJson, UnreadableObject, decode_object

T = TypeVar("T", bound=Object)

MOST_NODES = 100_000
"""The most nodes of a request: more than clusters have. Each costs time, also one that is unknown."""

_AtMost = msgspec.Meta(max_length=MOST_NODES)


class ExtenderError(ValueError):
    """A request does not have kube-scheduler's form; `where` is the path of the field, `$` the whole body."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """The answer to /filter, with `nodes` or `node_names` as in the request. A non-empty `error` fails the whole
    attempt.

    Pods may be preempted on a node in `failed_nodes`, but not on one in `failed_and_unresolvable_nodes`. `nodes` are
    Node objects, or their JSON with fields that we do not read.
    """

    node_names: Sequence[str] | None = None
    nodes: Sequence[Node | msgspec.Raw] | None = None
    failed_nodes: Mapping[str, str] | None = None
    failed_and_unresolvable_nodes: Mapping[str, str] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderArgs:
    """The request to /filter: `node_names` with nodeCacheCapable, else `nodes`; the other one is None."""

    pod: Pod
    nodes: list[Node] | None
    node_names: list[str] | None
    documents: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """The JSON of `nodes`, by name."""

    def as_written(self, result: FilterResult) -> FilterResult:
        """Writes the answer with its nodes as they were sent, because we read only some of their fields."""
        if result.nodes is None:
            return result
        names = (node.metadata.name for node in result.nodes if isinstance(node, Node))
        return replace(result, nodes=[self.documents[name] for name in names])


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingArgs:
    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


@dataclass(frozen=True, slots=True)
class BindingResult:
    """The answer to /bind; an empty `error` means bound."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class HostPriority:
    """One line of a /prioritize answer; `score` from 0 to 10."""

    host: str
    score: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVictims:
    """Pods of one node, by UID, that would be evicted; `pdb_violations` is kube-scheduler's own count."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionArgs:
    """The request to /preempt: by node, the pods that kube-scheduler would evict for the pod."""

    pod: Pod
    victims: Mapping[str, NodeVictims]


def decode_preemption_args(body: bytes) -> PreemptionArgs:
    """Reads victims as UIDs (nodeCacheCapable) or as whole pods, depending on the field. Raises ExtenderError."""
    fields = _fields(body)
    pod = fields.get("pod")
    if pod is None:
        raise ExtenderError("$.Pod", "missing")
    field = "NodeNameToMetaVictims" if "nodenametometavictims" in fields else "NodeNameToVictims"
    raw = fields.get(field.lower())
    if raw is None:
        raise ExtenderError("$.NodeNameToMetaVictims", "missing")
    by_node: dict[str, msgspec.Raw] = _value(f"$.{field}", Annotated[dict[str, msgspec.Raw], _AtMost], raw)
    victims = {node: _victims(f"$.{field}[{node!r}]", row) for node, row in by_node.items()}
    return PreemptionArgs(pod=_object("$.Pod", Pod, pod), victims=victims)


def encode_preemption_result(victims: Mapping[str, NodeVictims]) -> bytes:
    """Writes the nodes on which preemption helps, always with UIDs, the only form that kube-scheduler reads."""
    rows = {
        node: {"Pods": [{"UID": uid} for uid in each.uids], "NumPDBViolations": each.pdb_violations}
        for node, each in victims.items()
    }
    return msgspec.json.encode({"NodeNameToMetaVictims": rows})


def decode_extender_args(body: bytes) -> ExtenderArgs:
    """Raises ExtenderError."""
    try:
        args = decoded(body, _PlainArgs)
    except msgspec.DecodeError:
        return _decode_unusual_args(body)
    return ExtenderArgs(pod=args.pod, nodes=None, node_names=args.node_names)


def _decode_unusual_args(body: bytes) -> ExtenderArgs:
    """Reads the slower forms too: whole nodes, names in other cases, and nulls. It names the field at fault."""
    fields = _fields(body)
    pod = fields.get("pod")
    if pod is None:
        raise ExtenderError("$.Pod", "missing")
    read = _object("$.Pod", Pod, pod)
    node_names, listed = _node_names(fields.get("nodenames")), fields.get("nodes")
    if listed is None:
        return ExtenderArgs(pod=read, nodes=None, node_names=node_names)
    rows = _node_rows(listed)
    nodes = [_object(f"$.Nodes.items[{position}]", Node, row) for position, row in enumerate(rows)]
    documents = {node.metadata.name: row for node, row in zip(nodes, rows, strict=True)}
    return ExtenderArgs(pod=read, nodes=nodes, node_names=node_names, documents=documents)


def decode_binding_args(body: bytes) -> BindingArgs:
    """Reads a request to /bind. The pod's name, its namespace and the node must be there. Raises ExtenderError."""
    fields = _fields(body)
    return BindingArgs(
        pod_name=_text(fields, "PodName", required=True),
        pod_namespace=_text(fields, "PodNamespace", required=True),
        pod_uid=_text(fields, "PodUID"),
        node=_text(fields, "Node", required=True),
    )


def encode_filter_result(result: FilterResult) -> bytes:
    """Writes all five keys, always."""
    nodes = None if result.nodes is None else {"metadata": {}, "items": list(result.nodes)}
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": None if result.node_names is None else list(result.node_names),
            "FailedNodes": _mapping(result.failed_nodes),
            "FailedAndUnresolvableNodes": _mapping(result.failed_and_unresolvable_nodes),
            "Error": result.error,
        }
    )


def encode_binding_result(result: BindingResult) -> bytes:
    return msgspec.json.encode({"Error": result.error})


def encode_host_priorities(priorities: Sequence[HostPriority]) -> bytes:
    return msgspec.json.encode([{"Host": priority.host, "Score": priority.score} for priority in priorities])


def _mapping(reasons: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if reasons is None else dict(reasons)


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Returns the members of the body by lower-case name. As in Go, the last of several spellings counts and a null
    counts as missing.
    """
    try:
        members = decoded(body, dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise ExtenderError("$", "expected an object") from None
    except msgspec.DecodeError as error:
        raise ExtenderError("$", f"not JSON: {error}" if body.strip() else "the body is empty") from error
    return {name.lower(): value for name, value in members.items() if bytes(value) != b"null"}


def _object(where: str, kind: type[T], raw: msgspec.Raw) -> T:
    try:
        return decode_object(kind, raw)
    except (UnreadableObject, NotJson) as error:
        raise _at(where, error) from error


def _victims(where: str, raw: msgspec.Raw) -> NodeVictims:
    members = _members(where, raw)
    pods = members.get("pods")
    rows = [] if pods is None else _value(f"{where}.Pods", list[msgspec.Raw], pods)
    uids = tuple(_victim_uid(f"{where}.Pods[{position}]", row) for position, row in enumerate(rows))
    violations = members.get("numpdbviolations")
    count = 0 if violations is None else _value(f"{where}.NumPDBViolations", int, violations)
    return NodeVictims(uids=uids, pdb_violations=count)


def _victim_uid(where: str, raw: msgspec.Raw) -> str:
    """Reads the UID of `{"UID": …}`, or of a whole Pod."""
    members = _members(where, raw)
    if "uid" in members:
        uid: str = _value(f"{where}.UID", str, members["uid"])
    else:
        uid = _object(where, Pod, raw).metadata.uid
    if not uid:
        raise ExtenderError(f"{where}.UID", "missing")
    return uid


def _members(where: str, raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Returns members by lower-case name; a null counts as missing."""
    members: dict[str, msgspec.Raw] = _value(where, dict[str, msgspec.Raw], raw)
    return {name.lower(): value for name, value in members.items() if bytes(value) != b"null"}


def _node_rows(raw: msgspec.Raw) -> list[msgspec.Raw]:
    rows: list[msgspec.Raw] | None = _value("$.Nodes", _NodeList, raw).items
    return rows or []


def _node_names(raw: msgspec.Raw | None) -> list[str] | None:
    return None if raw is None else _value("$.NodeNames", Annotated[list[str], _AtMost], raw)


def _text(fields: Mapping[str, msgspec.Raw], name: str, *, required: bool = False) -> str:
    raw = fields.get(name.lower())
    text: str = "" if raw is None else _value(f"$.{name}", str, raw)
    if required and not text:
        raise ExtenderError(f"$.{name}", "missing")
    return text


class _PlainArgs(msgspec.Struct, forbid_unknown_fields=True):
    """The request of kube-scheduler with nodeCacheCapable. It is decoded in one pass, because each pod has thousands of
    names.
    """

    pod: Pod = msgspec.field(name="Pod")
    nodes: None = msgspec.field(name="Nodes", default=None)
    node_names: Annotated[list[str], _AtMost] | None = msgspec.field(name="NodeNames", default=None)


class _NodeList(msgspec.Struct):
    items: Annotated[list[msgspec.Raw], _AtMost] | None = None


def _value(where: str, kind: Any, raw: msgspec.Raw) -> Any:
    try:
        return decoded(raw, kind)
    except msgspec.DecodeError as error:
        raise _at(where, error) from error


def _at(where: str, error: Exception) -> ExtenderError:
    """Returns the field's path; msgspec's own root is `$`."""
    problem, _, path = str(error).partition(" - at `$")
    return ExtenderError(where + path.rstrip("`"), problem)
