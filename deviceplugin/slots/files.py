"""Reads and writes the folder where runtimes find the spec of the slots (edge)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from deviceplugin.container.atomic_file import locked, write_atomically
from deviceplugin.container.cdi import (
    SLOT_KIND,
    DefinedDevice,
    UnreadableSpec,
    cdi_spec,
    defined_edits,
    joined,
    missing_sentence,
    with_devices,
)
from deviceplugin.container.cdi_files import CDI_DIRECTORIES, CannotWriteSpec, spec_files
from deviceplugin.container.edits import ContainerEdits
from deviceplugin.slots.slot import SPEC_FILE, TRIAL_FILE
from proto.decoding import converted, decoded

Spec = Mapping[str, Any]


class _SlotDevice(msgspec.Struct, rename="camel"):
    name: str
    container_edits: dict[str, Any]


class _WrittenSpec(msgspec.Struct, rename="camel"):
    cdi_version: str
    kind: Literal["topogpu.io/slot"]
    devices: list[_SlotDevice]


class SlotFiles:
    """`others`: the folders that hold the specs of the GPUs themselves. Every method blocks."""

    def __init__(self, directory: str, others: Sequence[str] = CDI_DIRECTORIES) -> None:
        self._directory = Path(directory)
        self._others = tuple(dict.fromkeys((*others, directory)))

    def problem(self) -> str:
        """Returns why no spec can be written; empty if one can."""
        trial = self._directory / TRIAL_FILE
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with locked(self._directory):
                write_atomically(trial, b"{}")
                trial.unlink()
        except OSError as error:
            return f"the CDI folder {self._directory} cannot be written: {error.strerror}"
        return ""

    def spec(self, slot: str, edits: ContainerEdits) -> Spec:
        """Returns a spec of this slot alone with exactly these edits. Raises CannotWriteSpec."""
        return with_devices(cdi_spec(SLOT_KIND, slot, edits), self._defined(edits))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Locks the file against other daemons: two run on a node while one replaces the other.

        Raises CannotWriteSpec.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with locked(self._directory):
                yield
        except OSError as error:
            raise CannotWriteSpec(f"{self._directory / SPEC_FILE} cannot be written: {error.strerror}.") from error

    def read(self) -> Mapping[str, Spec]:
        """Returns what the file defines, by slot; nothing if it cannot be read, or is not one that we write."""
        try:
            spec = decoded((self._directory / SPEC_FILE).read_bytes(), dict[str, Any])
            converted(spec, _WrittenSpec)
        except (OSError, msgspec.MsgspecError):
            return {}
        return {device["name"]: {**spec, "devices": [device]} for device in spec["devices"]}

    def write(self, specs: Sequence[Spec]) -> None:
        """Writes one file for all these slots, whole, or removes it. Raises CannotWriteSpec."""
        path = self._directory / SPEC_FILE
        try:
            if specs:
                self._directory.mkdir(parents=True, exist_ok=True)
                write_atomically(path, msgspec.json.encode(joined(specs)))
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise CannotWriteSpec(f"{path} cannot be written: {error.strerror}.") from error
        except UnicodeEncodeError as error:
            raise CannotWriteSpec(f"{path} cannot be written: the name {error.object!a} is not text.") from error

    def _defined(self, edits: ContainerEdits) -> list[DefinedDevice]:
        """Returns the edits of the GPUs' specs, because our spec cannot refer to them. Raises CannotWriteSpec."""
        annotated = (name for names in edits.annotations.values() for name in names.split(","))
        wanted = tuple(dict.fromkeys((*edits.cdi_devices, *annotated)))
        known: dict[str, DefinedDevice] = {}
        for path in spec_files(self._others) if wanted else ():
            if path.name != SPEC_FILE:
                known.update(_readable(path))
        missing = [name for name in wanted if name not in known]
        if missing:
            hint = "generate one with nvidia-ctk cdi generate."
            raise CannotWriteSpec(missing_sentence(missing, self._others, hint))
        return [known[name] for name in wanted]


def _readable(path: Path) -> dict[str, DefinedDevice]:
    """Returns the devices of a spec; none of an unreadable one."""
    try:
        return dict(defined_edits(str(path), path.read_bytes()))
    except (OSError, UnreadableSpec):
        return {}
