"""What the containers say of themselves: the lines of workload.c and finder.c in the logs that kubelet keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one start of a container was given."""

    number: int
    """Counted from 0."""
    env: Mapping[str, str]
    devices: Mapping[str, str]
    """Major and minor number of every file /dev/nvidia…."""
    mounts: Mapping[str, str]
    """By place: what of which file system, and the options."""
    found: Mapping[str, str]
    """What each library that was loaded answers, and whether a program is there."""


def read_starts(folder: Path) -> list[Start]:
    """Those of which kubelet keeps the logs, the last and the one before, oldest first."""
    logs = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
    return [start for path in logs if (start := _read(path)) is not None]


def _read(path: Path) -> Start | None:
    """None until all is told."""
    try:
        log = path.read_text()
    except FileNotFoundError:
        return None
    # The runtime puts time, stream and a tag before each line (kubelet's CRI log format).
    lines = [line.split(" ", 3)[-1] for line in log.splitlines()]
    if "end" not in lines:
        return None
    return Start(
        number=int(path.stem),
        env=_of("env", lines),
        devices=_of("device", lines),
        mounts=_of("mount", lines),
        found=_of("library", lines) | _of("file", lines),
    )


def _of(kind: str, lines: list[str]) -> dict[str, str]:
    pairs = (line.removeprefix(f"{kind} ").partition("=") for line in lines if line.startswith(f"{kind} "))
    return {name: value for name, _, value in pairs}
