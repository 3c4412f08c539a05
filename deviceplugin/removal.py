"""Finds what a daemon left on a node, and whether it may be removed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from deviceplugin.container.cdi import spec_file_name
from deviceplugin.container.hami_core_names import CONTAINER_FOLDERS, installed_names
from deviceplugin.node.desired import Desired
from deviceplugin.node.labels import labels_of_ours
from deviceplugin.node.totals import present_totals
from deviceplugin.records.memory import MEMORY_FOLDER
from deviceplugin.settings import LIMITS_FOLDER, TotalNames
from deviceplugin.slots.slot import SPEC_FILE, TRIAL_FILE
from deviceplugin.socket_names import is_socket_name
from proto.annotations.keys import (
    NODE_ALLOCATION,
    NODE_CONDITION,
    NODE_HANDSHAKE,
    NODE_LABELS,
    NODE_LIMITS,
    NODE_LOCK,
    NODE_LOCK_UID,
    NODE_NUMA,
    NODE_OUTLIVING,
    NODE_REGISTER,
    NODE_SCORE,
    NODE_SIMULATED,
    NODE_TAINT,
    NODE_UNDECIDED,
    NODE_UNHEALTHY,
    SUMS,
)
from proto.annotations.node_handshake import HandshakeState, decode_handshake
from proto.annotations.node_lock import decode_lock_uid
from proto.devices import MIG_RESOURCE_PREFIX
from proto.kubernetes.objects import Container, Node, Pod
from proto.quantity import QuantityError, integer_quantity

_MIG_SOCKETS = "nvidia-mig-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The place where a daemon with these settings writes."""

    slots: str
    """The CDI specs of slots."""
    specs: str
    """The CDI spec of the GPUs themselves."""
    hami_core: str
    """HAMi-core."""
    locks: str
    """HAMi-core's lock files."""
    plugins: str
    """Kubelet's device plugins' sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The names in each folder; none for a folder that is not there. `served` are sockets with a listener."""

    names: Mapping[str, Collection[str]]
    served: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Which names the daemon's settings make it use; no `cdi_kind` where it generates no spec of the GPUs."""

    resource: str
    """The sockets of our plugin."""
    cdi_kind: str = ""


def paths_of_ours(folders: Folders, found: Found, ours: Ours) -> tuple[str, ...]:
    """Returns the paths to remove, with all that is in them, in this order. A socket that is served stays."""

    def chosen(folder: str, is_ours: Callable[[str], bool]) -> list[str]:
        return [f"{folder}/{name}" for name in sorted(found.names.get(folder, ())) if is_ours(name)]

    hami_core = found.names.get(folders.hami_core, ())
    return (
        *(
            path
            for path in chosen(folders.plugins, lambda name: is_plugin_socket(name, ours))
            if path not in found.served
        ),
        *chosen(folders.slots, _is_slot_file),
        *chosen(folders.specs, lambda name: bool(ours.cdi_kind) and _settled(name) == spec_file_name(ours.cdi_kind)),
        *chosen(folders.hami_core, lambda name: name in CONTAINER_FOLDERS or name != _settled(name)),
        *(f"{folders.hami_core}/{name}" for name in installed_names(hami_core)),
        *([folders.locks] if folders.locks in found.names else []),
    )


def annotations_of_ours(node: Node) -> tuple[str, ...]:
    """Returns the keys to remove. What HAMi's plugin writes too is ours if our own key is beside it: they are written
    at once. A person's cordon stays, and so does a lock that no scheduler of ours has signed.
    """
    annotations = node.metadata.annotations
    keys: list[str] = []
    if NODE_ALLOCATION in annotations:
        keys += [
            NODE_REGISTER,
            NODE_SCORE,
            NODE_ALLOCATION,
            NODE_LIMITS,
            NODE_SIMULATED,
            NODE_NUMA,
            NODE_UNDECIDED,
            NODE_OUTLIVING,
            NODE_UNHEALTHY,
        ]
        if decode_handshake(annotations.get(NODE_HANDSHAKE, "")).state is HandshakeState.REPORTED:
            keys.append(NODE_HANDSHAKE)
    if decode_lock_uid(annotations.get(NODE_LOCK, ""), annotations.get(NODE_LOCK_UID, "")):
        keys.append(NODE_LOCK)
    return tuple(key for key in (*keys, NODE_LABELS, NODE_LOCK_UID) if key in annotations)


def status_of_ours(node: Node, names: TotalNames) -> Desired:
    """Returns the removal of our resources from the Node's capacity, if our own annotation is beside them, and of our
    condition.
    """
    totals = present_totals(node, (*names, *SUMS)) if NODE_ALLOCATION in node.metadata.annotations else ()
    conditions = [NODE_CONDITION for condition in node.status.conditions if condition.type == NODE_CONDITION]
    return Desired(totals=dict.fromkeys(totals), conditions=dict.fromkeys(conditions))


def metadata_of_ours(node: Node) -> Desired:
    """Returns the removal of our taint, labels and annotations."""
    return Desired(
        taints=dict.fromkeys(NODE_TAINT for taint in node.spec.taints if taint.get("key") == NODE_TAINT),
        labels=dict.fromkeys(labels_of_ours(node)),
        annotations=dict.fromkeys(annotations_of_ours(node)),
        of_this_version=True,
    )


def words_of(removal: Desired) -> tuple[str, ...]:
    """Returns what is removed, for people."""
    return (
        *(f"{resource} from the capacity" for resource in removal.totals),
        *(f"condition {name}" for name in removal.conditions),
        *(f"taint {name}" for name in removal.taints),
        *(f"label {name}" for name in removal.labels),
        *(f"annotation {name}" for name in removal.annotations),
    )


def refusals(node_name: str, pods: Collection[Pod], found: Found, resource: str) -> tuple[str, ...]:
    """Returns why nothing may be removed yet, a sentence each."""
    holders = sorted(pod.full_name for pod in pods if _holds_gpus(pod, resource))
    sentences = []
    if holders:
        sentences.append(
            f"Pods on node {node_name} still have GPUs: {', '.join(holders)}. Drain the node or wait for them; "
            "what is removed under a pod cannot be restored, and its containers cannot be restarted."
        )
    sentences += [
        f"A device plugin still serves {path}. Stop it first: remove the daemon's DaemonSet, or end its process."
        for path in sorted(found.served)
    ]
    return tuple(sentences)


def _holds_gpus(pod: Pod, resource: str) -> bool:
    return not pod.has_ended and any(_asks(container, resource) for container in pod.all_containers)


def _asks(container: Container, resource: str) -> bool:
    """An amount that cannot be read counts."""
    amounts = {**container.resources.requests, **container.resources.limits}
    for name, amount in amounts.items():
        if name == resource or name.startswith(MIG_RESOURCE_PREFIX):
            try:
                if integer_quantity(amount):
                    return True
            except QuantityError:
                return True
    return False


def is_plugin_socket(name: str, ours: Ours) -> bool:
    return is_socket_name(name, ours.resource) or (name.startswith(_MIG_SOCKETS) and name.endswith(".sock"))


def _is_slot_file(name: str) -> bool:
    return name in (TRIAL_FILE, MEMORY_FOLDER, LIMITS_FOLDER) or _settled(name) == SPEC_FILE


def _settled(name: str) -> str:
    """Returns the name that a file was to get which a crash left half written."""
    half_written = name.startswith(".") and name.endswith(".new")
    return name[1 : -len(".new")] if half_written else name
