"""Known kinds of machine, as descriptions that ship with the simulation."""

from pathlib import Path

from program.words import nearest
from simulation.machines.description import (
    MachineDescription,
    gpu_uuid,
    read_machine_description,
)
from simulation.machines.yaml_tree import MachineDescriptionError

__all__ = ["SHORT", "MachineDescription", "MachineDescriptionError", "gpu_uuid", "load", "names"]

_FOLDER = Path(__file__).parent
SHORT = {
    "dgx-a100": "dgxa100-8x-a100-40g",
    "hgx-h100": "hgxh100-8x-h100-80g",
    "hgx-h200": "hgxh200-8x-h200-141g",
    "hgx-b200": "hgxb200-8x-b200-180g",
    "l40s": "8x-l40s",
    "l4": "8x-l4",
    "gb200": "gb200-nvl72-tray",
    "gh200": "4x-gh200",
    "rtx-pro-6000": "8x-rtx-pro-6000",
    "t4": "1x-t4-vm",
}
"""The chart's names of the machines that a cluster can simulate."""


def names() -> tuple[str, ...]:
    """Names that `load` knows, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load(name_or_path: str | Path) -> MachineDescription:
    """A machine by its name, by what only its name begins with, or read from a file. Raises MachineDescriptionError."""
    name = SHORT.get(str(name_or_path), str(name_or_path))
    begun = [each for each in names() if each.startswith(name)] if name else []
    if len(begun) == 1 and not Path(name).exists():
        name = begun[0]
    known = name in names()
    path = _FOLDER / f"{name}.yaml" if known else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        why = f"no such file; {nearest(name, names())}Simulated machines are {', '.join(names())}"
        raise MachineDescriptionError(str(path), "", why) from e
    except (OSError, UnicodeDecodeError) as e:
        raise MachineDescriptionError(str(path), "", f"cannot be read: {getattr(e, 'strerror', '') or e}") from e
    return read_machine_description(text, path.name if known else str(path))
