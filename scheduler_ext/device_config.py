"""HAMi's `device-config.yaml`, as far as it tells a scheduler something.

Keys and their meaning as in HAMi 2.10, section `nvidia` (`pkg/device/nvidia/device.go`, chart template
`device-configmap.yaml`); the node daemon reads the same file for the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

import yaml

_TEXTS = {
    "resourceCountName": "resource_name",
    "resourceMemoryName": "resource_mem",
    "resourceMemoryPercentageName": "resource_mem_percentage",
    "resourceCoreName": "resource_cores",
    "resourcePriorityName": "resource_priority",
    "gpuCorePolicy": "gpu_core_policy",
    "runtimeClassName": "runtime_class_name",
}
_NEVER_EMPTY = frozenset(_TEXTS.values()) - {"runtime_class_name"}
_NUMBERS = {
    "defaultMemory": "default_mem",
    "defaultCores": "default_cores",
    "defaultGPUNum": "default_gpu",
    "memoryFactor": "memory_factor",
}
_SWITCHES = {"overwriteEnv": "overwrite_env"}
_KNOWN = _TEXTS | _NUMBERS | _SWITCHES
KEYS = {parameter: key for key, parameter in _KNOWN.items()}
"""Of the file, by the name of the flag's parameter."""
_OF_THE_NODE = frozenset(
    {
        "deviceSplitCount",
        "deviceMemoryScaling",
        "deviceCoreScaling",
        "preConfiguredDeviceMemory",
        "libCudaLogLevel",
        "enableNumaTopology",
        "disableCoreLimit",
        "migProfileAllowlist",
        "knownMigGeometries",
    }
)


class DeviceConfigError(ValueError):
    """The file cannot be used; one sentence with the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """`defaults` are by the name of the flag's parameter; a key that the file leaves out is left out here."""

    defaults: Mapping[str, str | int | bool] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_device_config(text: str, file: str) -> DeviceConfig:
    """Raises DeviceConfigError."""
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DeviceConfigError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    section = tree.get("nvidia") if isinstance(tree, dict) else None
    if not isinstance(section, dict):
        raise DeviceConfigError(f"{file}: has no section nvidia with keys and values")
    defaults: dict[str, str | int | bool] = {}
    warnings: list[str] = []
    for key, value in section.items():
        if key in _KNOWN and value is not None:
            defaults[_KNOWN[key]] = _checked(key, value, f"{file}: nvidia.{key}")
        elif key not in _KNOWN and key not in _OF_THE_NODE:
            close = get_close_matches(str(key), [*_KNOWN, *_OF_THE_NODE], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            warnings.append(f"{file}: nvidia.{key} is known neither to HAMi nor here{hint}")
    return DeviceConfig(defaults=_without_zeros(defaults), warnings=tuple(warnings))


def _checked(key: str, value: object, where: str) -> str | int | bool:
    if key in _TEXTS and isinstance(value, str):
        return value
    if key in _SWITCHES and isinstance(value, bool):
        return value
    if key in _NUMBERS and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    wanted = "text" if key in _TEXTS else "true or false" if key in _SWITCHES else "a whole number from 0"
    raise DeviceConfigError(f"{where}: expected {wanted}, found {value!r}")


def _without_zeros(defaults: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    """An empty name is none given, and a factor of 0 is no factor, as in HAMi."""
    return {
        name: value
        for name, value in defaults.items()
        if not (value == "" and name in _NEVER_EMPTY) and not (value == 0 and name == "memory_factor")
    }
