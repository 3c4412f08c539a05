"""Programs of other projects, played by shell scripts in a folder that `PATH` names."""

from pathlib import Path


def put_program(folder: Path, name: str, script: str) -> Path:
    """Returns the program's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
