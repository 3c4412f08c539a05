"""Builds what a container is created with: the environment of its image, the plugins' answers, the pod's own
environment, and the CDI specs that the answers name.

Sources: kubelet's pod_devices.go (deviceRunContainerOptions), containerd's internal/cri/server/container_create.go,
CRI-O's server/container_create.go, and the Container Device Interface specification 0.6.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import msgspec

from proto.decoding import decoded
from proto.kubelet.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse
from proto.kubernetes.objects import Container

Phase = Literal["init", "app"]


class CdiOrder(StrEnum):
    """The moment at which a container runtime applies CDI devices."""

    LAST = "last"
    """containerd with CDI, and CRI-O from 1.31.11, 1.32.7, 1.33.3 and 1.34 on."""
    FIRST = "first"
    """CRI-O before: the environment of image, plugins and pod replaces that of the devices."""
    NEVER = "never"
    """containerd 1.7 to 2.2 with `enable_cdi = false`: containers start without them, silently."""


class CdiError(Exception):
    """A CDI device the container names cannot be resolved; the container cannot be created."""


class _Lenient(msgspec.Struct, rename="camel"):
    """CDI's spelling on the wire."""


class CdiDeviceNode(_Lenient):
    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    permissions: str = "rwm"


class CdiMount(_Lenient):
    host_path: str
    container_path: str
    options: list[str] = []


class CdiHook(_Lenient):
    hook_name: str
    path: str
    args: list[str] = []
    env: list[str] = []
    timeout: int | None = None


class CdiEdits(_Lenient):
    env: list[str] = []
    device_nodes: list[CdiDeviceNode] = []
    mounts: list[CdiMount] = []
    hooks: list[CdiHook] = []


class CdiDevice(_Lenient):
    name: str
    container_edits: CdiEdits = msgspec.field(default_factory=CdiEdits)


class CdiSpec(_Lenient):
    kind: str
    devices: list[CdiDevice] = []
    container_edits: CdiEdits = msgspec.field(default_factory=CdiEdits)


@dataclass(frozen=True, slots=True)
class CreatedMount:
    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class CreatedDeviceNode:
    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedContainer:
    """One container as its runtime would have created it."""

    name: str
    phase: Phase
    device_ids: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[CreatedMount, ...]
    devices: tuple[CreatedDeviceNode, ...]
    annotations: Mapping[str, str]
    cdi_devices: tuple[str, ...]
    hooks: tuple[CdiHook, ...] = ()
    container_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeManner:
    """The way in which a runtime makes containers. `has_file` returns whether the host has the file."""

    order: CdiOrder = CdiOrder.LAST
    image_env: Mapping[str, str] = field(default_factory=dict)
    has_file: Callable[[str], bool] = lambda _: True


_USUAL = RuntimeManner()


def create_container(
    container: Container,
    phase: Phase,
    device_ids: Sequence[str],
    answers: Sequence[ContainerAllocateResponse],
    specs: Sequence[CdiSpec],
    *,
    manner: RuntimeManner = _USUAL,
) -> CreatedContainer:
    """Returns kubelet's merge of all answers and the pod's environment, over the image's, and the runtime's edits.

    Raises CdiError for a CDI device that no spec holds, or whose device file is missing.
    """
    order = manner.order
    names = tuple(device.name for answer in answers for device in answer.cdi_devices)
    edits = [edit for name in names for edit in resolve_cdi(name, specs)] if order is not CdiOrder.NEVER else []
    _find_device_files(edits, manner.has_file)
    own_env = {variable.name: variable.value for variable in container.env if variable.value_from is None}
    variables = {**manner.image_env, **_answered_env(answers), **own_env}
    return CreatedContainer(
        name=container.name,
        phase=phase,
        device_ids=tuple(device_ids),
        env=_edited_env(edits) | variables if order is CdiOrder.FIRST else variables | _edited_env(edits),
        mounts=_answered_mounts(answers) + _edited_mounts(edits),
        devices=_answered_devices(answers) + _edited_devices(edits),
        annotations={key: value for answer in answers for key, value in sorted(answer.annotations.items())},
        cdi_devices=names,
        hooks=tuple(hook for edit in edits for hook in edit.hooks),
    )


def resolve_cdi(name: str, specs: Sequence[CdiSpec]) -> tuple[CdiEdits, ...]:
    """Returns the edits of `vendor/class=device`: those of the whole spec, then the device's own. Raises CdiError."""
    kind, _, device_name = name.partition("=")
    for spec in specs:
        for device in spec.devices:
            if spec.kind == kind and device.name == device_name:
                return (spec.container_edits, device.container_edits)
    raise CdiError(f"failed to inject CDI devices: unresolvable CDI devices {name}")


def decode_cdi_spec(text: bytes) -> CdiSpec:
    """Reads a spec in JSON. Raises CdiError."""
    try:
        return decoded(text, CdiSpec)
    except msgspec.DecodeError as error:
        raise CdiError(f"unreadable CDI spec: {error}") from error


def _find_device_files(edits: Sequence[CdiEdits], has_file: Callable[[str], bool]) -> None:
    """Looks for devices whose number no spec has, as fillMissingInfo of the CDI library does. Raises CdiError."""
    for node in (node for edit in edits for node in edit.device_nodes if not (node.type and node.major)):
        path = node.host_path or node.path
        if not has_file(path):
            problem = f'failed to stat CDI host device "{path}": no such file or directory'
            raise CdiError(f"failed to inject CDI devices: failed to inject devices: {problem}")


def _answered_env(answers: Sequence[ContainerAllocateResponse]) -> dict[str, str]:
    return {key: value for answer in answers for key, value in sorted(answer.envs.items())}


def _edited_env(edits: Sequence[CdiEdits]) -> dict[str, str]:
    pairs = (variable.partition("=") for edit in edits for variable in edit.env)
    return {key: value for key, _, value in pairs}


def _answered_mounts(answers: Sequence[ContainerAllocateResponse]) -> tuple[CreatedMount, ...]:
    return tuple(CreatedMount(m.container_path, m.host_path, m.read_only) for answer in answers for m in answer.mounts)


def _edited_mounts(edits: Sequence[CdiEdits]) -> tuple[CreatedMount, ...]:
    return tuple(CreatedMount(m.container_path, m.host_path, "ro" in m.options) for edit in edits for m in edit.mounts)


def _answered_devices(answers: Sequence[ContainerAllocateResponse]) -> tuple[CreatedDeviceNode, ...]:
    return tuple(
        CreatedDeviceNode(d.container_path, d.host_path, d.permissions) for answer in answers for d in answer.devices
    )


def _edited_devices(edits: Sequence[CdiEdits]) -> tuple[CreatedDeviceNode, ...]:
    return tuple(
        CreatedDeviceNode(d.path, d.host_path or d.path, d.permissions) for edit in edits for d in edit.device_nodes
    )
