"""`hami.io/node-nvidia-register`: the GPUs of a node. Beside it are `hami.io/node-nvidia-score`, the score of the link
between each pair of them, and `hami.io/device-cordon`, those that an administrator keeps new pods away from.

It is written as the JSON list of HAMi 2.8 and later, without zero-valued fields, as Go's encoder does. It is read in
that form and in the comma-and-colon text of 2.4 (7 fields) and 2.5 to 2.7 (9 fields). Source: pkg/device/devices.go of
Project-HAMi/HAMi.

Scores are `[{"uuid": A, "score": {B: 100}}]`. Integers are written, because HAMi's scheduler drops the whole node for
anything else; integer strings, as in HAMi's topology design note, are read as well.
"""

from collections.abc import Iterable, Sequence
from sys import intern
from typing import Literal

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_REGISTER, NODE_SCORE
from proto.annotations.values import decode_integer, decode_json, decode_natural
from proto.devices import Device, DeviceUUID, Int32, MigProfile, Natural, PairScores

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


def encode_cordon(uuids: Iterable[DeviceUUID]) -> str:
    return ",".join(sorted(uuids))


def decode_cordon(value: str) -> frozenset[DeviceUUID]:
    """Reads the UUIDs; blanks around entries and empty entries are allowed."""
    return frozenset(DeviceUUID(entry.strip()) for entry in value.split(",") if entry.strip())


class _ScoreRow(msgspec.Struct):
    uuid: DeviceUUID
    score: dict[DeviceUUID, Int32 | str] = {}


def encode_scores(scores: PairScores, order: Sequence[DeviceUUID]) -> str:
    """Writes rows in `order`, each row's peers sorted by UUID as Go's encoder does."""
    rows = [{"uuid": uuid, "score": dict(sorted(scores.get(uuid, {}).items()))} for uuid in order]
    return msgspec.json.encode(rows).decode()


def decode_scores(value: str) -> PairScores:
    """Reads scores by GPU and peer. Raises AnnotationError naming the GPU and peer that cannot be read."""
    rows = decode_json(NODE_SCORE, value, list[_ScoreRow])
    return {DeviceUUID(intern(row.uuid)): _row_scores(row) for row in rows}


def _row_scores(row: _ScoreRow) -> dict[DeviceUUID, int]:
    return {DeviceUUID(intern(peer)): _score(row.uuid, peer, score) for peer, score in row.score.items()}


def _score(uuid: str, peer: str, score: int | str) -> int:
    return score if isinstance(score, int) else decode_integer(NODE_SCORE, f"{uuid} to {peer}", score)
