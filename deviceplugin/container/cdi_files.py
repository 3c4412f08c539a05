"""Reads and writes the CDI folders of this node, and runs `nvidia-ctk` if there is one (edge)."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
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


class CannotGenerate(Exception):
    """No spec could be made for the GPUs; the end of a sentence, with what to do."""


class CannotWriteSpec(Exception):
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecGenerator:
    """Generates specs with `nvidia-ctk` of NVIDIA's container toolkit, which adds more than this daemon does; else
    without it.
    """

    program: str = "nvidia-ctk"
    driver_root: str = "/"
    dev_root: str = "/"
    deadline_seconds: float = 30.0

    def generate(self, kind: str, hardware: Hardware) -> bytes:
        """Returns a spec of this kind that names every GPU and MIG instance by UUID. Blocks. Raises CannotGenerate."""
        if hardware.driver_mounts and shutil.which(self.program) is None:
            return msgspec.json.encode(gpu_spec(kind, hardware))
        try:
            done = subprocess.run(  # noqa: S603 - the administrator names the program
                self._command(kind), capture_output=True, timeout=self.deadline_seconds, check=False
            )
        except FileNotFoundError as error:
            problem = f"{self.program} is not on this machine to generate it. Install the NVIDIA container toolkit, "
            raise CannotGenerate(problem + "or set driver_root to where the driver is.") from error
        except subprocess.TimeoutExpired as error:
            raise CannotGenerate(f"{self.program} took longer than {self.deadline_seconds:g} s.") from error
        except OSError as error:
            raise CannotGenerate(f"{self.program} cannot be run: {error.strerror}.") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise CannotGenerate(f"{self.program} failed with status {done.returncode}: {said[-1]}")
        try:
            defined_devices(f"the output of {self.program}", done.stdout)
        except UnreadableSpec as error:
            raise CannotGenerate(str(error)) from error
        return done.stdout

    def _command(self, kind: str) -> list[str]:
        vendor, _, device_class = kind.partition("/")
        words = [self.program, "cdi", "generate", "--format=json", "--device-name-strategy=uuid"]
        words += [f"--vendor={vendor}", f"--class={device_class}"]
        words += [f"--driver-root={self.driver_root}"] if self.driver_root != "/" else []
        return words + ([f"--dev-root={self.dev_root}"] if self.dev_root != "/" else [])


def ensure_defined(
    wanted: Sequence[str],
    kind: str,
    generator: SpecGenerator,
    directories: Sequence[str] = CDI_DIRECTORIES,
    *,
    hardware: Hardware,
) -> str:
    """Returns an empty text if every wanted name is defined, generating the spec of `kind` if necessary; else one
    sentence.

    A generated spec goes to the last folder, which takes precedence. It is due at every start, because an older spec
    names the libraries of an older driver. Blocks.
    """
    own = Path(directories[-1], spec_file_name(kind))
    reason = "generate one with nvidia-ctk cdi generate."
    if any(name.startswith(f"{kind}=") for name in missing_devices(wanted, directories, ignored=own)):
        reason = f"{generator.program} does not know them."
        try:
            _write(own, generator.generate(kind, hardware))
        except (CannotGenerate, CannotWriteSpec) as error:
            reason = str(error)
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


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise CannotWriteSpec(f"{path} cannot be written: {error.strerror}.") from error


def spec_files(directories: Sequence[str]) -> list[Path]:
    """Returns the specs that a runtime would read; those of the folder that takes precedence come last."""
    found: list[Path] = []
    for directory in directories:
        try:
            found += (Path(entry.path) for entry in os.scandir(directory) if entry.name.endswith(_SUFFIXES))
        except OSError:
            continue
    return found
