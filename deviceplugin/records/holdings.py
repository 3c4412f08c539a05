"""Kubelet's two records of what containers hold: its checkpoint, and the answers of pod-resources.

Kubelet writes the checkpoint after every container's allocation and before the next one. So during an Allocate it names
exactly the containers that were served before. Source: pkg/kubelet/cm/devicemanager of Kubernetes.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from google.protobuf.message import DecodeError

from proto.decoding import decoded
from proto.kubelet.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse


class CheckpointUnreadable(Exception):
    """The text does not have the form of kubelet 1.20 and later."""


class Holding(msgspec.Struct, frozen=True, rename="pascal"):
    """The ids of one resource that one container holds, by NUMA node as text; `-1` stands for none."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: Mapping[str, list[str] | None] | None = msgspec.field(name="DeviceIDs", default=None)
    """Go writes null for what is empty. An empty entry of another plugin must not keep a pod from its GPUs."""

    answer: str | None = msgspec.field(name="AllocResp", default=None)
    """The answer of Allocate, which kubelet uses at every start of the container: protobuf in base64."""

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """Returns the devices that kubelet names to the container runtime; none if the answer cannot be read."""
        return tuple(device.name for device in self._answered().cdi_devices)

    @property
    def mounts(self) -> Mapping[str, str]:
        """Returns paths on the host by path in the container, from the same answer."""
        return {mount.container_path: mount.host_path for mount in self._answered().mounts}

    @property
    def env(self) -> Mapping[str, str]:
        """Returns the container's variables, from the same answer."""
        return dict(self._answered().envs)

    def _answered(self) -> ContainerAllocateResponse:
        try:
            return ContainerAllocateResponse.FromString(base64.b64decode(self.answer or ""))
        except (DecodeError, ValueError):
            return ContainerAllocateResponse()

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(identifier for ids in (self.device_ids or {}).values() for identifier in ids or ())


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[Holding] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data


ReadCheckpoint = Callable[[], Awaitable[tuple[Holding, ...] | None]]
"""Reads the entries in a thread; None while they cannot be read."""
Witness = Mapping[str, frozenset[str]]
"""Maps a pod's UID to the names of the containers for which kubelet has recorded an allocation."""


def decode_checkpoint(text: bytes) -> tuple[Holding, ...]:
    """Reads every entry. Only kubelet checks the checksum, which covers Go's in-memory form. Raises
    CheckpointUnreadable.
    """
    try:
        return tuple(decoded(text, _Checkpoint).data.pod_device_entries or ())
    except msgspec.DecodeError as error:
        raise CheckpointUnreadable(f"kubelet's checkpoint cannot be read: {error}") from error


def witness(holdings: Sequence[Holding], resource: str) -> Witness:
    """Returns the containers that were served of one resource."""
    names: dict[str, set[str]] = {}
    for holding in holdings:
        if holding.resource_name == resource:
            names.setdefault(holding.pod_uid, set()).add(holding.container_name)
    return {uid: frozenset(found) for uid, found in names.items()}


def witness_reader(read: ReadCheckpoint, resource: str) -> Callable[[], Awaitable[Witness | None]]:
    """Returns the containers that were served of one resource, computed once for each answer of `read`; None if that is
    None.
    """
    known: tuple[Holding, ...] | None = None
    found: Witness | None = None

    async def served() -> Witness | None:
        nonlocal known, found
        holdings = await read()
        if holdings is not known:
            known, found = holdings, None if holdings is None else witness(holdings, resource)
        return found

    return served


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A container in pod-resources, with all ids it holds of our resource."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveCpus:
    """The CPUs that kubelet gives to single containers."""

    all: frozenset[int]
    """The CPUs that it may give away."""
    of_others: frozenset[int]
    """The CPUs that it gave to pods without a GPU of our resource."""
    of_ours: Mapping[tuple[str, str, str], frozenset[int]] = field(default_factory=dict)
    """The CPUs of each container of the other pods that has any, by namespace, pod and container."""
    without_gpus: frozenset[int] = frozenset()
    """The CPUs among them of containers without a GPU."""

    @property
    def free(self) -> frozenset[int]:
        """Returns the CPUs that no container has."""
        return self.all.difference(self.of_others, *self.of_ours.values())
