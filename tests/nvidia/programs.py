"""NVIDIA's own programs, built once by Go from their modules: container toolkit, GPU feature discovery, device plugin.

`python -m tests.nvidia.programs` builds what is missing and prints the folder. Nothing of them is part of this
repository. The device plugin is the newest that Go's module proxy has.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.binaries import BuildFailed, NoBinaries, cache, printed

TOOLS = Path(__file__).parent / "tools"
_LAZY = "-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy"
"""NVIDIA's own linker flags: the functions of libnvidia-ml.so.1 are looked up when they are called."""


@dataclass(frozen=True, slots=True)
class _Module:
    """A Go module whose `tool` lines are built: `folder` lies below TOOLS, and `path` is the module of NVIDIA."""

    folder: str
    path: str

    @property
    def version(self) -> str:
        text = (TOOLS / self.folder / "go.mod").read_text()
        found = re.search(rf"^\s*{re.escape(self.path)} (v\S+)", text, re.MULTILINE)
        assert found is not None
        return found[1]

    @property
    def programs(self) -> list[str]:
        text = (TOOLS / self.folder / "go.mod").read_text()
        return re.findall(rf"^\s*{re.escape(self.path)}/cmd/(\S+)$", text, re.MULTILINE)


TOOLKIT = _Module("toolkit", "github.com/NVIDIA/nvidia-container-toolkit")
PLUGIN = _Module("plugin", "github.com/NVIDIA/k8s-device-plugin")


@dataclass(frozen=True, slots=True)
class Programs:
    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def missing(self, module: _Module) -> list[str]:
        return [name for name in module.programs if not os.access(self.path(name), os.X_OK)]


def find() -> Programs:
    """Raises NoBinaries."""
    programs = _named()
    missing = [*programs.missing(TOOLKIT), *programs.missing(PLUGIN)]
    if missing:
        raise NoBinaries(
            f"{programs.folder} has no {', '.join(missing)}: run `make test-nvidia` where Go and gcc are installed, "
            "which builds them once"
        )
    return programs


def build() -> Programs:
    """Builds what is missing: 5 minutes on two cores. Raises NoBinaries, BuildFailed."""
    programs = _named()
    for module in (TOOLKIT, PLUGIN):
        if programs.missing(module):
            if not (shutil.which("go") and shutil.which("gcc")):
                return find()
            _go_build(module, programs.folder)
    return programs


def _go_build(module: _Module, folder: Path) -> None:
    print(
        f"building {', '.join(module.programs)} {module.version} into {folder}, once ...", file=sys.stderr, flush=True
    )
    stamp = f"-X {module.path}/internal/info.version={module.version[1:]}"
    flags = f"-s -w '-extldflags={_LAZY}' {stamp}"
    partial = folder / f"{module.folder}.partial"
    command = ["go", "build", "-mod=readonly", "-trimpath", "-o", f"{partial}/", "-ldflags", flags, "tool"]
    environment = {**os.environ, "CGO_ENABLED": "1", "CGO_CFLAGS": "-w"}
    if subprocess.run(command, cwd=TOOLS / module.folder, env=environment, check=False).returncode:
        raise BuildFailed(f"{module.path} {module.version} could not be built: see the output of Go above")
    for name in module.programs:
        (partial / name).rename(folder / name)
    partial.rmdir()


def _named() -> Programs:
    return Programs(cache("nvidia") / f"toolkit-{TOOLKIT.version}-plugin-{PLUGIN.version}")


if __name__ == "__main__":
    printed(lambda: build().folder)
