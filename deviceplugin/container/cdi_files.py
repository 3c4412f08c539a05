"""Reads and writes the CDI folders of this node (edge)."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deviceplugin.container.atomic_file import write_atomically
from deviceplugin.container.cdi import (
    UnreadableSpec,
    defined_devices,
    gpu_spec,
    missing_sentence,
    spec_file_name,
)
from deviceplugin.container.edits import Hardware

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""The default folders of runtimes."""
_SUFFIXES = (".json", ".yaml")


class CannotWriteSpec(Exception):
    """One sentence."""


def ensure_defined(
    wanted: Sequence[str], kind: str, directories: Sequence[str] = CDI_DIRECTORIES, *, hardware: Hardware
) -> str:
    """Returns an empty text if every wanted name is defined, after writing the spec of `kind` if necessary; else one
    sentence.

    The spec goes to the last folder, which takes precedence. It is due at every start, because an older spec names the
    libraries of an older driver. Blocks.
    """
    own = Path(directories[-1], spec_file_name(kind))
    reason = "generate one with nvidia-ctk cdi generate."
    if any(name.startswith(f"{kind}=") for name in missing_devices(wanted, directories, ignored=own)):
        if hardware.driver_mounts:
            reason = _problem_of_writing(own, msgspec.json.encode(gpu_spec(kind, hardware))) or reason
        else:
            reason = f"{reason.rstrip('.')}, or set driver_root to where the driver is."
    missing = missing_devices(wanted, directories)
    return missing_sentence(missing, directories, reason) if missing else ""


def missing_devices(
    wanted: Sequence[str], directories: Sequence[str] = CDI_DIRECTORIES, *, ignored: Path | None = None
) -> tuple[str, ...]:
    """Returns the wanted names that no spec in the folders defines. An unreadable spec defines nothing."""
    defined: set[str] = set()
    for path in spec_files(directories):
        if path == ignored:
            continue
        try:
            defined |= defined_devices(str(path), path.read_bytes())
        except (OSError, UnreadableSpec):
            continue
    return tuple(name for name in wanted if name not in defined)


def _problem_of_writing(path: Path, content: bytes) -> str:
    """Returns one sentence; empty once the file is written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}."
    return ""


def spec_files(directories: Sequence[str]) -> list[Path]:
    """Returns the specs that a runtime would read; those of the folder that takes precedence come last."""
    found: list[Path] = []
    for directory in directories:
        try:
            found += (Path(entry.path) for entry in os.scandir(directory) if entry.name.endswith(_SUFFIXES))
        except OSError:
            continue
    return found
