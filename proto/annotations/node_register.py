"""`hami.io/node-nvidia-register`: the GPUs of a node.

It is written as the JSON list of HAMi 2.8 and later, without zero-valued fields, as Go's encoder does. It is read in
that form and in the comma-and-colon text of 2.4 (7 fields) and 2.5 to 2.7 (9 fields). Source: pkg/device/devices.go of
Project-HAMi/HAMi.
"""

from collections.abc import Sequence
from sys import intern
from typing import Literal

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_REGISTER
from proto.annotations.values import decode_integer, decode_json, decode_natural
from proto.devices import Device, DeviceUUID, Int32, MigProfile, Natural

TextFields = Literal[7, 9]
DEFAULT_MODE = "hami-core"
MOST_GPUS = 256
"""Ten times as many as any node has. Decisions compare each GPU with each other one."""


class _RegisterRow(msgspec.Struct, omit_defaults=True, rename={"mig_profiles": "migProfiles"}):
    """Field order is Go's; a field equal to its default is not written."""

    id: str = ""
    index: Natural = 0
    count: Natural = 0
    devmem: Natural = 0
    devcore: Natural = 0
    type: str = ""
    numa: Int32 = 0
    mode: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    health: bool = False


def encode_register(devices: Sequence[Device]) -> str:
    """Writes the annotation, in the order given; `[]` for a node without GPUs."""
    return msgspec.json.encode([_row(device) for device in devices]).decode()


def encode_register_text(devices: Sequence[Device], fields: TextFields = 9) -> str:
    """Writes the text form for old schedulers; HAMi up to 2.7 doubles the vendor word in the type.

    Raises AnnotationError for a name with `,` or `:`, which this form cannot hold.
    """
    for position, device in enumerate(devices):
        for name in (device.uuid, device.type, device.mode):
            if set(",:") & set(name):
                raise AnnotationError(NODE_REGISTER, f"device {position}", f"{name!r} cannot be written as text")
    return "".join(_text(device, fields) for device in devices)


def decode_register(value: str) -> tuple[Device, ...]:
    """Reads the GPUs in annotation order. Raises AnnotationError naming the position and the reason."""
    text = value.strip()
    if not text:
        raise AnnotationError(NODE_REGISTER, "", "empty")
    devices = _decode_json(text) if text.startswith("[") else _decode_text(text)
    if len(devices) > MOST_GPUS:
        raise AnnotationError(NODE_REGISTER, "", f"lists {len(devices)} GPUs; at most {MOST_GPUS} are read")
    seen: set[str] = set()
    for position, device in enumerate(devices):
        if not device.uuid:
            raise AnnotationError(NODE_REGISTER, f"$[{position}].id", "missing")
        if device.uuid in seen:
            raise AnnotationError(NODE_REGISTER, f"$[{position}].id", f"{device.uuid} is listed twice")
        seen.add(device.uuid)
    return devices


def _row(device: Device) -> _RegisterRow:
    return _RegisterRow(
        id=device.uuid,
        index=device.index,
        count=device.replicas,
        devmem=device.memory_mib,
        devcore=device.cores,
        type=device.type,
        numa=device.numa,
        mode=device.mode,
        mig_profiles=device.mig_profiles,
        health=device.healthy,
    )


def _device(row: _RegisterRow) -> Device:
    """Reads one GPU. Names are interned: thousands of nodes have the same ones, and pair scores and pods repeat the
    UUIDs.
    """
    return Device(
        uuid=DeviceUUID(intern(row.id)),
        index=row.index,
        replicas=row.count,
        memory_mib=row.devmem,
        cores=row.devcore,
        type=intern(row.type),
        numa=row.numa,
        mode=intern(row.mode or DEFAULT_MODE),
        healthy=row.health,
        mig_profiles=row.mig_profiles,
    )


def _decode_json(text: str) -> tuple[Device, ...]:
    return tuple(_device(row) for row in decode_json(NODE_REGISTER, text, list[_RegisterRow]))


def _text(device: Device, fields: TextFields) -> str:
    health = "true" if device.healthy else "false"
    row = [
        device.uuid,
        str(device.replicas),
        str(device.memory_mib),
        str(device.cores),
        f"NVIDIA-{device.type}",
        str(device.numa),
        health,
    ]
    if fields == 9:
        row += [str(device.index), device.mode]
    return ",".join(row) + ":"


def _decode_text(text: str) -> tuple[Device, ...]:
    if ":" not in text:
        raise AnnotationError(NODE_REGISTER, "", "neither a JSON list nor a list of devices that end in ':'")
    segments = (segment for segment in text.split(":") if segment)
    return tuple(_decode_segment(position, segment) for position, segment in enumerate(segments))


def _decode_segment(position: int, segment: str) -> Device:
    fields = segment.split(",")
    if len(fields) not in (7, 9):
        raise AnnotationError(NODE_REGISTER, f"device {position}", f"expected 7 or 9 fields, found {len(fields)}")

    def number(field: int, name: str) -> int:
        return decode_natural(NODE_REGISTER, f"device {position}, {name}", fields[field])

    if fields[6] not in ("true", "false"):
        raise AnnotationError(
            NODE_REGISTER, f"device {position}, health", f"expected true or false, found {fields[6]!r}"
        )
    return Device(
        uuid=DeviceUUID(fields[0]),
        index=number(7, "index") if len(fields) == 9 else 0,
        replicas=number(1, "count"),
        memory_mib=number(2, "memory"),
        cores=number(3, "cores"),
        type=fields[4].removeprefix("NVIDIA-") if fields[4].startswith("NVIDIA-NVIDIA") else fields[4],
        numa=decode_integer(NODE_REGISTER, f"device {position}, numa", fields[5]),
        mode=(fields[8] if len(fields) == 9 else "") or DEFAULT_MODE,
        healthy=fields[6] == "true",
    )
