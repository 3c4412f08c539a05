"""One CDI device that makes the edits of others: a spec cannot name devices of another spec.

Source: SPEC.md of cncf-tags/container-device-interface; every edit but `intelRdt` is a list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from deviceplugin.container.cdi import read_spec

Edits = Mapping[str, Any]


class _MergedDevice(msgspec.Struct, rename="camel"):
    name: str
    container_edits: dict[str, Any] = {}


class _MergedSpec(msgspec.Struct, rename="camel"):
    kind: str
    cdi_version: str = ""
    container_edits: dict[str, Any] = {}
    devices: list[_MergedDevice] = []


@dataclass(frozen=True, slots=True)
class DefinedDevice:
    """`edits` are those of the whole spec, then the device's own."""

    version: str
    edits: tuple[Edits, ...]


def defined_edits(source: str, text: bytes) -> Mapping[str, DefinedDevice]:
    """Returns the edits for each full name that a spec defines. Raises UnreadableSpec, which names the source."""
    spec = read_spec(source, text, _MergedSpec)
    return {
        f"{spec.kind}={device.name}": DefinedDevice(spec.cdi_version, (spec.container_edits, device.container_edits))
        for device in spec.devices
    }


def with_devices(spec: Mapping[str, Any], devices: Sequence[DefinedDevice]) -> Mapping[str, Any]:
    """Returns a spec of one device, whose edits are its own and then all of the others', each once."""
    (own,) = spec["devices"]
    content = dict(own["containerEdits"])
    for edits in (each for device in devices for each in device.edits):
        for key, value in edits.items():
            if isinstance(value, list):
                known = content.get(key, [])
                content[key] = [*known, *(entry for entry in value if entry not in known)]
            else:
                content.setdefault(key, value)
    version = max([spec["cdiVersion"], *(device.version for device in devices)], key=_numbers)
    return {**spec, "cdiVersion": version, "devices": [{**own, "containerEdits": content}]}


def joined(specs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns one spec with the devices of all these, which are of one kind. The last has the edits for all devices."""
    version = max((spec["cdiVersion"] for spec in specs), key=_numbers)
    return {**specs[-1], "cdiVersion": version, "devices": [device for spec in specs for device in spec["devices"]]}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in version.split("."))
