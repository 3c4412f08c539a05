"""Stands in for NVIDIA's container runtime: runc, and before it what the runtime adds to a container that names GPUs.

`nvidia_runtime.py SETTINGS` with runc's own arguments behind it. NVIDIA_VISIBLE_DEVICES names the GPUs, and
NVIDIA_DRIVER_CAPABILITIES=utility asks for NVML. Source of both: NVIDIA/nvidia-container-toolkit, its documents on
specialized configurations. The device files have no driver behind them, and NVML is the fake one.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
MACHINE_FILE = "/etc/topogpu-fake-nvml-machine"
_MAJOR, _CONTROL_MINOR = 195, 255
_READ_ONLY = ["rbind", "ro", "nosuid", "nodev"]


def edited(spec: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The container's configuration with what the runtime adds. `settings`: `uuids` by index (none: there is no such
    runtime), `library`, `machine`, `sys` (paths on the host).
    """
    environment = dict(entry.partition("=")[::2] for entry in spec["process"].get("env", []))
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    uuids = settings["uuids"]
    if visible in ("", "void", "none") or not uuids:
        return spec
    indices = range(len(uuids)) if visible == "all" else [uuids.index(one) for one in visible.split(",")]
    devices = spec["linux"].setdefault("devices", [])
    allowed = spec["linux"].setdefault("resources", {}).setdefault("devices", [])
    there = {device["path"] for device in devices}
    for name, minor in (("nvidiactl", _CONTROL_MINOR), *((f"nvidia{index}", index) for index in indices)):
        if f"/dev/{name}" in there:
            continue
        number = {"type": "c", "major": _MAJOR, "minor": minor}
        devices.append({"path": f"/dev/{name}", **number, "fileMode": 0o666, "uid": 0, "gid": 0})
        allowed.append({"allow": True, **number, "access": "rwm"})
    if "utility" in environment.get("NVIDIA_DRIVER_CAPABILITIES", ""):
        spec["mounts"] += [_mount(LIBRARY, settings["library"]), _mount(MACHINE_FILE, settings["machine"])]
        for mount in spec["mounts"]:
            if mount["destination"] == "/sys":
                mount.update(type="bind", source=settings["sys"], options=["rbind", "ro"])
    return spec


def _mount(place: str, source: str) -> dict[str, Any]:
    return {"destination": place, "type": "bind", "source": source, "options": _READ_ONLY}


def _bundle(words: list[str]) -> Path | None:
    """Of `create`; None for other commands."""
    if "create" not in words:
        return None
    for number, word in enumerate(words):
        if word in ("--bundle", "-b"):
            return Path(words[number + 1])
        if word.startswith("--bundle="):
            return Path(word.partition("=")[2])
    return Path.cwd()


def main() -> None:
    settings_path, *words = sys.argv[1:]
    settings = json.loads(Path(settings_path).read_text())
    bundle = _bundle(words)
    if bundle is not None:
        configuration = bundle / "config.json"
        spec = edited(json.loads(configuration.read_text()), settings)
        configuration.write_text(json.dumps(spec))
    os.execv(settings["runc"], [settings["runc"], *words])


if __name__ == "__main__":
    main()
