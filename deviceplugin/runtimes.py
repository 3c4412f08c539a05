"""Decides whether kubelet passes CDI devices on, and whether the container runtime always applies them, and last.

A slot's spec holds all that a container is given, so it must replace what image and pod set, and a container must not
start without it. What the releases do, by their sources:

- kubelet passes CDI devices of device plugins on since 1.29 (feature gate DevicePluginCDIDevices).
- containerd 1.7 to 2.2 starts containers without their CDI devices, silently, where `enable_cdi` is false. That is the
  default of 1.7, and 2.x takes it over from a configuration file of 1.7. 2.3 refuses such containers; 2.4 has no such
  switch.
- CRI-O reads kubelet's CDI devices since 1.28. It applied them before the environment of image and pod, which then
  replaced theirs, until 1.31.11, 1.32.7, 1.33.3 and 1.34.0 (cri-o/cri-o pull request 9292).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from proto.decoding import decoded

Version = tuple[int, int, int]
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
_KUBELET: Version = (1, 29, 0)
_CONTAINERD: Version = (1, 7, 0)
_CONTAINERD_ON: Version = (2, 0, 0)
_CONTAINERD_REFUSES: Version = (2, 3, 0)
_CONTAINERD_ALWAYS: Version = (2, 4, 0)
APPLY_FOR_SURE = "containerd 2.3 or CRI-O 1.34"
"""Releases that apply CDI devices whatever their configuration is."""
_CRIO_ORDER = {31: 11, 32: 7, 33: 3}
"""The first patch of each minor release that applies CDI devices last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The facts about kubelet and the container runtime; empty and None where they are unknown."""

    kubelet: str = ""
    """`v1.36.0`, as the Node has it."""
    runtime: str = ""
    """`containerd://2.4.2`, as the Node has it."""
    enable_cdi: bool | None = None
    """The runtime's own answer; None if it gave none."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A clause."""

    clause: str
    likely: bool
    """CDI devices are applied unless that is switched off."""


def why_no_cdi(node: Runtime) -> str:
    """Returns why a slot is not applied here, or not last, as a clause; empty where it is or that is unknown."""
    kubelet = _version(node.kubelet)
    if kubelet is None:
        return "the Node does not report its kubelet's version"
    if kubelet < _KUBELET:
        return f"kubelet is {node.kubelet}, CDI devices need 1.29"
    name, _, number = node.runtime.partition("://")
    version = _version(number)
    if version is None and name in ("", "containerd", "cri-o"):
        return "the Node does not report its container runtime's version"
    if version is None:
        return ""
    if name == "containerd":
        return _containerd(node.runtime, version, enable_cdi=node.enable_cdi)
    return _crio(node.runtime, version) if name == "cri-o" else ""


def doubt(node: Runtime) -> Doubt | None:
    """Returns the doubt that only the runtime itself can settle, and has not; None if nothing is left open."""
    name, _, number = node.runtime.partition("://")
    if name == "cri-o":
        return None
    if name != "containerd":
        return Doubt(f"the container runtime {node.runtime} is not known to apply CDI devices", likely=False)
    version = _version(number) or _CONTAINERD_REFUSES
    if node.enable_cdi is not None or version >= _CONTAINERD_REFUSES:
        return None
    clause = (
        f"the container runtime {node.runtime} starts containers without their CDI devices where its configuration "
        "has enable_cdi = false, and it could not be asked: mount its socket (criSocket of the chart), or use "
        "containerd 2.3"
    )
    return Doubt(clause, likely=version >= _CONTAINERD_ON)


def enabled_cdi(info: Mapping[str, str]) -> bool | None:
    """Returns the switch for CDI in a runtime's verbose Status; None where it has none, or does not report it."""
    try:
        return decoded(info.get("config", "{}"), _Config).enable_cdi
    except msgspec.DecodeError:
        return None


class _Config(msgspec.Struct):
    """containerd's; only the switch is read."""

    enable_cdi: bool | None = msgspec.field(name="enableCDI", default=None)


def _containerd(text: str, version: Version, *, enable_cdi: bool | None) -> str:
    if version < _CONTAINERD:
        return f"the container runtime is {text}, CDI devices need containerd 1.7"
    if enable_cdi is False and version < _CONTAINERD_ALWAYS:
        return f"the container runtime is {text} with enable_cdi = false in its configuration"
    return ""


def _crio(text: str, version: Version) -> str:
    major, minor, patch = version
    if (major, minor) < (1, 28):
        return f"the container runtime is {text}, CDI devices need CRI-O 1.28"
    fixed = _CRIO_ORDER.get(minor)
    if major == 1 and (minor < min(_CRIO_ORDER) or (fixed is not None and patch < fixed)):
        return (
            f"the container runtime is {text}, which lets the environment of image and pod replace that of CDI "
            "devices; CRI-O 1.31.11, 1.32.7, 1.33.3 and 1.34 do not"
        )
    return ""


def _version(text: str) -> Version | None:
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))
