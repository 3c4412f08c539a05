"""kubelet, containerd and runc: found, or built once from their Go modules.

`python -m tests.node.binaries [RELEASE]` builds what is missing and prints the folder, for NODE_ASSETS.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.binaries import NOTHING_TO_BUILD_WITH, BuildFailed, NoBinaries, cache, known, ldflags, version

TOOLS = Path(__file__).parent / "tools"
"""Two Go modules are built together: `runtime`, and the release's with kubelet alone."""
_RUNC = "github.com/opencontainers/runc"
NAMES = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc")


@dataclass(frozen=True, slots=True)
class NodeBinaries:
    """A folder that holds them all."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def missing(self) -> list[str]:
        return [name for name in NAMES if not os.access(self.folder / name, os.X_OK)]


def find(release: str = "") -> NodeBinaries:
    """$NODE_ASSETS, else what was built for the release (the newest). Raises NoBinaries."""
    named = os.environ.get("NODE_ASSETS")
    found = NodeBinaries(Path(named) if named else _folder(known(release)))
    missing = found.missing()
    if not missing:
        return found
    where = f"NODE_ASSETS={named}" if named else str(found.folder)
    raise NoBinaries(
        f"{where} has no {', '.join(missing)}: run `make test-node` where Go and gcc are installed, which builds them "
        "once, or set NODE_ASSETS to a folder that holds them (containerd 2.0 or newer)"
    )


def build(release: str = "") -> NodeBinaries:
    """`find`, and where that fails builds with Go: minutes on two cores. Raises NoBinaries, BuildFailed."""
    release = known(release)
    try:
        return find(release)
    except NoBinaries:
        if os.environ.get("NODE_ASSETS") or shutil.which("go") is None or shutil.which("gcc") is None:
            raise
    folder = _folder(release)
    partial = folder.parent / f"{folder.name}.partial"
    print(f"building {', '.join(NAMES)} into {folder}, once ...", file=sys.stderr, flush=True)
    runtime = TOOLS / "runtime"
    _go_build(runtime, partial, "-s -w", *(package for package in _tools(runtime) if package != _RUNC))
    with tempfile.TemporaryDirectory() as source:
        # runc enters its namespaces in C.
        _go_build(_runc_source(Path(source, "runc")), partial, "-s -w", ".", cgo=True)
    _go_build(TOOLS / release, partial, ldflags(version(release)), *_tools(TOOLS / release))
    partial.rename(folder)
    return NodeBinaries(folder)


def _go_build(module: Path, folder: Path, flags: str, *packages: str, cgo: bool = False) -> None:
    command = ["go", "build", "-mod=readonly", "-o", f"{folder}/", "-ldflags", flags, *packages]
    environment = {**os.environ, "CGO_ENABLED": str(int(cgo))}
    if subprocess.run(command, cwd=module, env=environment, check=False).returncode:
        raise BuildFailed(f"{' '.join(packages)} of {module.name} could not be built: see Go's own words above")


def _runc_source(copy: Path) -> Path:
    """The module's source, except that filters of system calls are left out: libseccomp is rarely installed, and
    without it runc refuses every sandbox. Raises BuildFailed.
    """
    command = ["go", "mod", "download", "-json", _RUNC]
    done = subprocess.run(command, cwd=TOOLS / "runtime", stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BuildFailed(f"{_RUNC} could not be fetched: see Go's own words above")
    # Without the modes, which are read-only there.
    shutil.copytree(json.loads(done.stdout)["Dir"], copy, copy_function=shutil.copyfile)
    shutil.copyfile(TOOLS / "seccomp_ignored.go.txt", copy / "libcontainer" / "seccomp" / "seccomp_unsupported.go")
    return copy


def _tools(module: Path) -> list[str]:
    """The packages of its `tool` lines."""
    text = (module / "go.mod").read_text()
    block = re.search(r"^tool (?:\((.*?)\)|(\S+))", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return (block[1] or block[2]).split()


def _folder(release: str) -> Path:
    found = re.search(r"containerd/v2 (v\S+)", (TOOLS / "runtime" / "go.mod").read_text())
    assert found is not None
    return cache("node") / f"{version(release)}-containerd-{found[1]}"


if __name__ == "__main__":
    try:
        print(build(sys.argv[1] if len(sys.argv) > 1 else "").folder)
    except BuildFailed as problem:
        raise SystemExit(f"{problem}.") from None
    except NoBinaries as problem:
        print(f"{problem}.", file=sys.stderr)
        raise SystemExit(NOTHING_TO_BUILD_WITH) from None
