"""Known kinds of machine, as descriptions that ship with the simulation."""

import re
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
    """Finds a machine by its name or a beginning that only it has, or reads a file. Raises MachineDescriptionError."""
    given = SHORT.get(str(name_or_path), str(name_or_path))
    begun = [each for each in names() if _plain(given) and _plain(each).startswith(_plain(given))]
    known = given if given in names() else begun[0] if len(begun) == 1 and not Path(given).exists() else ""
    path = _FOLDER / f"{known}.yaml" if known else Path(given)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        several = f"may be {' or '.join(begun)}; write more of the name"
        unknown = f"no such file; {nearest(given, names())}Simulated machines are {', '.join(names())}"
        raise MachineDescriptionError(str(path), "", several if begun else unknown) from e
    except (OSError, UnicodeDecodeError) as e:
        raise MachineDescriptionError(str(path), "", f"cannot be read: {getattr(e, 'strerror', '') or e}") from e
    return read_machine_description(text, path.name if known else str(path))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
