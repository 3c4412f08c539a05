"""Edge to the folder where runtimes find the specs of slots."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deviceplugin.allocation.slots import SLOT_KIND, TRIAL_FILE, slot_file, slot_of_file
from deviceplugin.container.atomic_file import write_atomically
from deviceplugin.container.cdi import UnreadableSpec, cdi_spec, missing_sentence
from deviceplugin.container.cdi_files import CDI_DIRECTORIES, CannotWriteSpec, spec_files
from deviceplugin.container.cdi_merge import DefinedDevice, defined_edits, with_devices
from deviceplugin.container.edits import ContainerEdits


class SlotFiles:
    """`others`: the folders that hold the specs of the GPUs themselves. Every method blocks."""

    def __init__(self, directory: str, others: Sequence[str] = CDI_DIRECTORIES) -> None:
        self._directory = Path(directory)
        self._others = tuple(dict.fromkeys((*others, directory)))

    def problem(self) -> str:
        """Why no spec can be written, empty when one can."""
        trial = self._directory / TRIAL_FILE
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_atomically(trial, b"{}")
            trial.unlink()
        except OSError as error:
            return f"the CDI folder {self._directory} cannot be written: {error.strerror}"
        return ""

    def slots(self) -> frozenset[str]:
        """Those that have a spec."""
        try:
            names = os.listdir(self._directory)
        except OSError:
            return frozenset()
        return frozenset(slot for name in names if (slot := slot_of_file(name)) is not None)

    def write(self, slot: str, edits: ContainerEdits) -> None:
        """The spec that makes exactly these edits; left alone where it stands already. Raises CannotWriteSpec."""
        spec = with_devices(cdi_spec(SLOT_KIND, slot, edits), self._defined(edits))
        path, content = self._directory / slot_file(slot), msgspec.json.encode(spec)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != content:
                write_atomically(path, content)
        except OSError as error:
            raise CannotWriteSpec(f"{path} cannot be written: {error.strerror}.") from error

    def remove(self, slot: str) -> None:
        """Raises OSError."""
        (self._directory / slot_file(slot)).unlink(missing_ok=True)

    def _defined(self, edits: ContainerEdits) -> list[DefinedDevice]:
        """What the specs of the GPUs do, which a spec of ours cannot refer to. Raises CannotWriteSpec."""
        annotated = (name for names in edits.annotations.values() for name in names.split(","))
        wanted = tuple(dict.fromkeys((*edits.cdi_devices, *annotated)))
        known: dict[str, DefinedDevice] = {}
        for path in spec_files(self._others) if wanted else ():
            if slot_of_file(path.name) is None:
                known.update(_readable(path))
        missing = [name for name in wanted if name not in known]
        if missing:
            hint = "generate one with nvidia-ctk cdi generate."
            raise CannotWriteSpec(missing_sentence(missing, self._others, hint))
        return [known[name] for name in wanted]


def _readable(path: Path) -> dict[str, DefinedDevice]:
    """An unreadable spec defines nothing."""
    try:
        return dict(defined_edits(str(path), path.read_bytes()))
    except (OSError, UnreadableSpec):
        return {}
