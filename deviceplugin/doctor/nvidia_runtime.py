"""Checks whether NVIDIA's container runtime gives containers the GPUs that their environment names.

Keys and defaults are those of the container toolkit 1.20.1 (api/config/v1/config.go). Which of them counts for a
container: internal/config/image/cuda_image.go there.
"""

import tomllib
from collections.abc import Collection
from dataclasses import dataclass

from deviceplugin.container.edits import DeviceListStrategy
from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning

RUNTIME = "NVIDIA's runtime"
_ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_VOLUMES = "accept-nvidia-visible-devices-as-volume-mounts"
_OTHER_VARIABLE = "swarm-resource"
_KEYS = {DeviceListStrategy.ENVVAR: _ENVVAR, DeviceListStrategy.VOLUME_MOUNTS: _VOLUMES}
_DEFAULTS: dict[str, bool | str] = {_ENVVAR: True, _VOLUMES: False, _OTHER_VARIABLE: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """The configuration of NVIDIA's runtime, and what that runtime gave this process."""

    path: str
    text: str | None
    """None if there is no such file here."""
    names_gpus: bool = False
    """The environment of this process names GPUs, as NVIDIA's runtime reads it."""
    has_driver: bool = True
    """This process can load the driver's library."""


def judge_runtime(facts: RuntimeFacts, strategies: Collection[DeviceListStrategy]) -> Finding:
    by_runtime = [strategy for strategy in strategies if strategy in _KEYS]
    chosen = f"device_list_strategy is {', '.join(strategies)}"
    if not by_runtime:
        return ok(RUNTIME, f"It need not name GPUs to containers: {chosen}.")
    if facts.text is None:
        return _unseen(facts)
    found = _read(facts.text)
    if isinstance(found, str):
        return warning(RUNTIME, f"{facts.path} {found}.", "Correct it: the runtime starts no container with it.")
    if not any(found[_KEYS[strategy]] for strategy in by_runtime):
        return _ignores(facts.path, _KEYS[by_runtime[0]], chosen)
    if found[_OTHER_VARIABLE]:
        return warning(
            RUNTIME,
            f"{facts.path} has {_OTHER_VARIABLE} = {found[_OTHER_VARIABLE]}: containers choose GPUs by that variable "
            "too, past the scheduler, and neither webhook nor policy refuses it.",
            f"Remove {_OTHER_VARIABLE} there.",
        )
    return ok(RUNTIME, f"It gives containers the GPUs that they name ({facts.path}), and {chosen}.")


def _read(text: str) -> dict[str, bool | str] | str:
    """Returns the keys that matter here, or why they cannot be read, as the end of a sentence."""
    try:
        found = _DEFAULTS | tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return f"is not TOML: {error}"
    wrong = next((key for key, value in _DEFAULTS.items() if not isinstance(found[key], type(value))), "")
    return f"has a value of the wrong type for {wrong}" if wrong else {key: found[key] for key in _DEFAULTS}


def _unseen(facts: RuntimeFacts) -> Finding:
    if facts.names_gpus and not facts.has_driver:
        return warning(
            RUNTIME,
            "This container asks NVIDIA's runtime for the driver and has none. Either another runtime started it, or "
            f"that runtime ignores such containers ({_ENVVAR} = false).",
            f"Name the runtime (devicePlugin.runtimeClassName of the chart), or set {_ENVVAR} to true, or let the "
            "daemon see the driver by driver_root and give containers their GPUs by CDI or driver-files.",
        )
    return skipped(RUNTIME, f"Its configuration is not visible here: there is no {facts.path}.")


def _ignores(path: str, key: str, chosen: str) -> Finding:
    return problem(
        RUNTIME,
        f"{path} has {key} = false, and {chosen}: containers start without their GPUs, and without a driver_root the "
        "daemon's own container has no driver.",
        "Set device_list_strategy to cdi-cri or cdi-annotations, and let the daemon see the driver by driver_root. Or "
        f"use driver-files. Or set {key} to true.",
    )
