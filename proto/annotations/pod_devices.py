"""`hami.io/vgpu-devices-to-allocate` and `…-allocated`: what each container of a pod holds.

pod       := container*              init containers first
container := share* ";"
share     := UUID "," "NVIDIA" "," MiB "," cores ":"
"""

from collections.abc import Sequence
from sys import intern

from proto.annotations.errors import AnnotationError
from proto.annotations.values import decode_natural
from proto.devices import VENDOR, ContainerShares, DeviceShare, DeviceUUID, PodShares

_LONGEST_UUID = 256
"""Characters of a UUID; the driver's have 40 to 60, and HAMi appends a few."""

_NO_DEVICE = ",,0,0"
"""HAMi's scheduler 2.4 writes it for a container without GPUs (pkg/scheduler/score.go)."""


def encode_pod_devices(pod: PodShares) -> str:
    return "".join("".join(_encode_share(share) for share in container) + ";" for container in pod)


def decode_pod_devices(key: str, value: str, containers: int | None = None) -> PodShares:
    """Reads one entry per container. `key` names the annotation in errors.

    HAMi's plugin adds one `;` to the value each time it consumes an entry. With `containers` given, empty entries
    beyond that number are dropped, missing ones added, and devices beyond it refused. Raises AnnotationError naming
    container and device.
    """
    entries = value.split(";")
    if entries[-1]:
        raise AnnotationError(key, f"container {len(entries) - 1}", "does not end in ';'")
    pod = tuple(_decode_container(key, position, entry) for position, entry in enumerate(entries[:-1]))
    if containers is None:
        return pod
    if any(pod[containers:]):
        raise AnnotationError(key, "", f"devices for {len(pod)} containers, but the pod has {containers}")
    return pod[:containers] + ((),) * (containers - len(pod))


def aligned(pod: PodShares, counts: Sequence[int]) -> PodShares:
    """Returns the entries at their containers' positions; `counts` is how many devices each container requests.

    HAMi up to 2.8, and 2.10 on real GPUs, omit the entries of containers without devices, so that later entries move to
    the left. That reading is used where it explains every entry and the plain one does not.
    """
    if all(len(shares) in (0, count) for shares, count in zip(pod, counts, strict=True)):
        return pod
    entries = [shares for shares in pod if shares]
    asking = [position for position, count in enumerate(counts) if count]
    if [len(shares) for shares in entries] != [counts[position] for position in asking]:
        return pod
    by_position = dict(zip(asking, entries, strict=True))
    return tuple(by_position.get(position, ()) for position in range(len(counts)))


def _encode_share(share: DeviceShare) -> str:
    return f"{share.uuid},{VENDOR},{share.memory_mib},{share.cores}:"


def _decode_container(key: str, position: int, entry: str) -> ContainerShares:
    pieces = (piece for piece in entry.split(":") if piece not in ("", _NO_DEVICE))
    return tuple(_decode_share(key, f"container {position}, device {n}", piece) for n, piece in enumerate(pieces))


def _decode_share(key: str, where: str, piece: str) -> DeviceShare:
    fields = piece.split(",")
    if len(fields) < 4:
        raise AnnotationError(key, where, f"expected UUID,vendor,MiB,cores, found {piece!r}")
    uuid, vendor, memory, cores = fields[:4]
    if not uuid:
        raise AnnotationError(key, where, "no UUID")
    if len(uuid) > _LONGEST_UUID:
        raise AnnotationError(key, where, f"the UUID has {len(uuid)} characters")
    if vendor != VENDOR:
        raise AnnotationError(key, where, f"expected vendor {VENDOR}, found {vendor!r}")
    return DeviceShare(
        uuid=DeviceUUID(intern(uuid)),
        memory_mib=decode_natural(key, f"{where}, MiB", memory),
        cores=decode_natural(key, f"{where}, cores", cores),
    )
