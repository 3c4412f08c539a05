"""Checks kubelet's sockets, which program serves the resource, and how much of it kubelet counts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning
from deviceplugin.replicas import replica_ids
from program.words import enumerated
from proto.annotations.node_allocation import AllocationMode
from proto.devices import Device
from proto.kubernetes.objects import Container, Node, Pod

KUBELET = "Kubelet's registration socket"
POD_RESOURCES = "Pod-resources socket"
OWNER = "Device plugin"
COUNT = "Kubelet's count"

OUR_PROGRAM = "topogpu-device-plugin"
_OUR_MODULE = "deviceplugin"
_PLUGIN = re.compile(r"(^|/)nvidia-(gpu-)?device-plugin$")
_PLUGIN_IMAGE = re.compile(r"(^|/)(k8s|nvidia|nvidia-gpu)-device-plugin([:@]|$)")
_MOUNT = "If kubelet runs, let this process see the folder: mount {folder} of the host, or set --kubelet-root."


class SocketState(Enum):
    CONNECTS = "answers"
    MISSING = "is not there"
    NO_SOCKET = "is no socket"
    REFUSED = "has no listener"
    FORBIDDEN = "may not be opened by this user"


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFacts:
    path: str
    state: SocketState
    listener: tuple[str, ...] = ()
    """Command line of the process that listens; empty where it cannot be seen, as from another PID namespace."""


def judge_kubelet_socket(socket: SocketFacts) -> Finding:
    if socket.state is SocketState.CONNECTS:
        return ok(KUBELET, f"{socket.path} answers.")
    return problem(
        KUBELET,
        f"{socket.path} {socket.state.value}, so the daemon cannot register and pods get no GPU of this node.",
        _socket_remedy(socket),
    )


def judge_pod_resources(socket: SocketFacts, mode: AllocationMode) -> Finding:
    if socket.state is SocketState.CONNECTS:
        return ok(POD_RESOURCES, f"{socket.path} answers.")
    if mode is AllocationMode.SLOTS:
        return problem(
            POD_RESOURCES,
            f"{socket.path} {socket.state.value}, so kubelet cannot be asked which pod holds which GPUs. Allocation "
            "is by slots, and no container that asks for GPUs starts.",
            _socket_remedy(socket),
        )
    return warning(
        POD_RESOURCES,
        f"{socket.path} {socket.state.value}, so kubelet cannot be asked which pod holds which GPUs; allocation falls "
        "back to immediate, which needs the node lock.",
        _socket_remedy(socket),
    )


def is_other_plugin(pod: Pod) -> bool:
    """Returns whether the pod runs NVIDIA's, HAMi's or GKE's device plugin. Their images also have other programs."""
    if pod.has_ended:
        return False
    return any(_runs_other_plugin(container) for container in pod.spec.containers)


def judge_owner(
    resource: str, ours: SocketFacts, other_sockets: Sequence[str], other_plugins: Sequence[str], node: Node | None
) -> Finding:
    """Checks which program serves the resource. `other_plugins`: pods of this node, as `namespace/name`."""
    remedy = f"Only one device plugin may serve {resource} on a node: remove the other one from this node."
    if other_plugins:
        word = "pod" if len(other_plugins) == 1 else "pods"
        return problem(
            OWNER,
            f"Another device plugin runs on this node, {word} {enumerated(other_plugins)}; kubelet uses the one that "
            f"registered {resource} last.",
            remedy,
        )
    if ours.state is SocketState.CONNECTS and ours.listener and not is_ours(ours.listener):
        return problem(OWNER, f"{ours.path} is served by another program: {' '.join(ours.listener)}.", remedy)
    if other_sockets:
        return problem(OWNER, f"Another device plugin has a socket too: {enumerated(other_sockets)}.", remedy)
    if ours.state is SocketState.CONNECTS:
        return ok(OWNER, f"{ours.path} answers{' and is ours' if ours.listener else ''}.")
    if node is not None and _quantity(node.status.allocatable, resource):
        return problem(
            OWNER,
            f"Kubelet counts {resource} on this node, but no program listens on {ours.path}: another device plugin "
            "registered it, or our daemon has just stopped.",
            remedy,
        )
    return problem(
        OWNER,
        f"No program serves {resource}: {ours.path} {ours.state.value}. Our daemon does not run, or has found no GPU.",
        f"Start {OUR_PROGRAM} run on this node, and read its log if it ends.",
    )


def judge_count(node: Node, served: Mapping[str, Sequence[Device]], ours: SocketFacts) -> Finding:
    """Compares kubelet's allocatable count with the healthy GPUs and their replicas, for every resource we serve."""
    if ours.state is not SocketState.CONNECTS:
        return skipped(COUNT, "Our device plugin does not serve yet.")
    wanted = {resource: _healthy_replicas(devices) for resource, devices in served.items() if devices}
    counted = {resource: _quantity(node.status.allocatable, resource) for resource in wanted}
    if counted == wanted:
        return ok(COUNT, f"Allocatable: {enumerated([f'{count} {resource}' for resource, count in counted.items()])}.")
    differences = [
        f"{counted[resource]} {resource} where this machine has {wanted[resource]}"
        for resource in wanted
        if counted[resource] != wanted[resource]
    ]
    return problem(
        COUNT,
        f"Kubelet counts {enumerated(differences)} (healthy GPUs times containers for each).",
        "Run this with the daemon's own settings (--device-split-count, --config). If they are the same, read the "
        "daemon's log: an unhealthy GPU does not count. Then restart it.",
    )


def is_ours(command: Sequence[str]) -> bool:
    """Returns whether a command line is this daemon's: its script, or python -m deviceplugin."""
    words = [word.rpartition("/")[2] for word in command]
    return OUR_PROGRAM in words or _OUR_MODULE in words


def _runs_other_plugin(container: Container) -> bool:
    words = [*container.command, *container.args]
    if any(OUR_PROGRAM in word for word in words) or OUR_PROGRAM in container.image:
        return False
    if any(_PLUGIN.search(word) for word in words):
        return True
    named = _PLUGIN.search(container.name) is not None
    return _PLUGIN_IMAGE.search(container.image) is not None and (named or not container.command)


def _healthy_replicas(devices: Sequence[Device]) -> int:
    return sum(len(replica_ids(device)) for device in devices if device.healthy)


def _quantity(quantities: Mapping[str, str | int | float], resource: str) -> int:
    text = str(quantities.get(resource, 0))
    return int(text) if text.isascii() and text.isdigit() else 0


def _socket_remedy(socket: SocketFacts) -> str:
    folder = socket.path.rpartition("/")[0]
    if socket.state is SocketState.FORBIDDEN:
        return "Run as root."
    if socket.state is SocketState.MISSING:
        return f"Check that kubelet runs (systemctl status kubelet). {_MOUNT.format(folder=folder)}"
    return "Check that kubelet runs (systemctl status kubelet); it creates the socket when it starts."
