"""CDI specs: reads what they define, makes one with our own edits, and merges several into one.

Source: SPEC.md of cncf-tags/container-device-interface, version 0.6.0, the first that has every field used here and
the last that containerd 1.7 reads. A spec cannot name devices of another spec, so edits of others are copied; every
edit but `intelRdt` is a list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import yaml

from deviceplugin.container.edits import NO_RUNTIME_ENV, ContainerEdits, DeviceNode, Hardware, Mount
from proto.decoding import converted, decoded

SPEC_VERSION = "0.6.0"
SLOT_KIND = "topogpu.io/slot"
"""The kind of slots: CDI devices `topogpu.io/slot=<name>`."""
_BIND = ("nosuid", "nodev", "bind")
Form = TypeVar("Form", bound=msgspec.Struct)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadableSpec(Exception):
    """A file is not a CDI spec; the message is one sentence that names it."""


class _Device(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    kind: str
    devices: list[_Device] = []


def defined_devices(source: str, text: bytes) -> frozenset[str]:
    """Returns the fully qualified names that a spec defines, JSON or YAML. Raises UnreadableSpec, which names the
    source.
    """
    spec = read_spec(source, text, _Spec)
    return frozenset(f"{spec.kind}={device.name}" for device in spec.devices)


def read_spec(source: str, text: bytes, form: type[Form]) -> Form:
    """Reads a spec, JSON or YAML, as far as `form` has its fields. Raises UnreadableSpec, which names the source."""
    try:
        # JSON is much quicker to read as itself than as the YAML it also is.
        document = decoded(text, Any) if text.startswith(b"{") else yaml.load(text, _Loader)  # noqa: S506 - safe
        return converted(document, form)
    except (msgspec.MsgspecError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UnreadableSpec(f"{source} is not a CDI specification: {reason}.") from error


def cdi_spec(kind: str, name: str, edits: ContainerEdits) -> Mapping[str, object]:
    """Returns a spec whose device `<kind>=<name>` makes these edits. Each device of the spec has the driver's files.

    A spec cannot hold annotations and other CDI devices: the request for this device must name them too.
    """
    common = _content(ContainerEdits(env={}, mounts=edits.driver_mounts))
    shared = {"containerEdits": common} if common else {}
    device = {"name": name, "containerEdits": _content(edits)}
    return {"cdiVersion": SPEC_VERSION, "kind": kind, **shared, "devices": [device]}


def gpu_spec(kind: str, hardware: Hardware) -> Mapping[str, object]:
    """Returns a spec that defines every GPU and MIG instance by UUID, and names the driver's files."""
    common = ContainerEdits(env=NO_RUNTIME_ENV, mounts=hardware.driver_mounts, devices=hardware.control_nodes)
    devices = [
        {"name": uuid, "containerEdits": _content(ContainerEdits(env={}, devices=nodes))}
        for uuid, nodes in hardware.gpu_nodes.items()
    ]
    return {"cdiVersion": SPEC_VERSION, "kind": kind, "containerEdits": _content(common), "devices": devices}


def qualified(slot: str) -> str:
    """Returns the slot as runtimes name it."""
    return f"{SLOT_KIND}={slot}"


def slot_in(cdi_devices: Sequence[str]) -> str:
    """Returns the slot that an Allocate answer names; empty if none."""
    prefix = qualified("")
    return next((name.removeprefix(prefix) for name in cdi_devices if name.startswith(prefix)), "")


def spec_file_name(kind: str) -> str:
    """Names the file of a spec that describes a whole kind."""
    return kind.replace("/", "-") + ".json"


def missing_sentence(missing: Sequence[str], directories: Sequence[str], reason: str) -> str:
    """Returns one sentence for the log and `doctor`; `reason` is why the specs were not generated."""
    shown = missing[0] + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    return (
        f"No CDI specification in {' or '.join(directories)} defines {shown}, so containers that get these devices "
        f"cannot start; {reason}"
    )


def _content(edits: ContainerEdits) -> Mapping[str, object]:
    content: dict[str, object] = {
        "env": [f"{key}={value}" for key, value in sorted(edits.env.items())],
        "deviceNodes": [_device_node(node) for node in edits.devices],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": list(edits.hooks),
    }
    return {key: value for key, value in content.items() if value}


def _device_node(node: DeviceNode) -> Mapping[str, object]:
    """Includes the device number, so that the runtime need not find the file on the host: the driver may be in a
    container.
    """
    host = {"hostPath": node.host_path} if node.host_path else {}
    number = {"type": "c", "major": node.number[0], "minor": node.number[1]} if node.number else {}
    return {"path": node.path, **host, **number, "permissions": "rw"}


def _mount(mount: Mount) -> Mapping[str, object]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": ["ro" if mount.read_only else "rw", *_BIND],
    }


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
