"""What a whole cluster needs beside the programs of `tests.cluster` and `tests.node`: found, or built once with Go.

kube-controller-manager and kube-proxy of the release, the CNI plugins, and a runc that applies filters of system calls.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.binaries import BuildFailed, NoBinaries, cache, known, ldflags, version
from tests.node.binaries import TOOLS as NODE_TOOLS

TOOLS = Path(__file__).parent / "tools"
"""A Go module for each release, and one for the plugins of the network."""
_NAMES = ("kube-controller-manager", "kube-proxy")
_PLUGINS = ("bridge", "host-local", "loopback")
_RUNC = "github.com/opencontainers/runc"
_BY = "run `make test-deploy` where Go is installed, which builds them once"


@dataclass(frozen=True, slots=True)
class DeployBinaries:
    folder: Path
    plugins: Path
    """The folder of the CNI plugins."""
    runc: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)


def find(release: str = "") -> DeployBinaries:
    """Raises NoBinaries."""
    folder, plugins, runc = _folders(release)
    wanted = [folder / name for name in _NAMES] + [plugins / name for name in _PLUGINS] + [runc / "runc"]
    missing = [str(path) for path in wanted if not os.access(path, os.X_OK)]
    if missing:
        raise NoBinaries(f"there is no {', '.join(missing)}: {_BY}")
    return DeployBinaries(folder, plugins, runc / "runc")


def build(release: str = "") -> DeployBinaries:
    """`find`, and where that fails builds with Go: two minutes on two cores. Raises NoBinaries, BuildFailed."""
    try:
        return find(release)
    except NoBinaries:
        if shutil.which("go") is None or shutil.which("gcc") is None:
            raise
    folder, plugins, runc = _folders(release)
    _go_build(TOOLS / known(release), folder, ldflags(version(known(release))), "tool")
    _go_build(TOOLS / "network", plugins, "-s -w", "tool")
    with tempfile.TemporaryDirectory() as temporary:
        _go_build(NODE_TOOLS / "runtime", runc, "-s -w", _RUNC, environment=_with_libseccomp(Path(temporary)))
    return find(release)


def _folders(release: str) -> tuple[Path, Path, Path]:
    there = cache("deploy")
    return there / version(known(release)), there / "network", there / "runc-seccomp"


def _with_libseccomp(folder: Path) -> dict[str, str]:
    """Where cgo finds the library: where it is installed, else in Debian's package, unpacked. Raises BuildFailed."""
    found = {"CGO_ENABLED": "1", "GOFLAGS": "-tags=seccomp"}
    if not subprocess.run(["pkg-config", "--exists", "libseccomp"], check=False).returncode:
        return found
    for command in ("apt-get download libseccomp-dev", "dpkg -x libseccomp-dev_*.deb ."):
        if subprocess.run(["sh", "-c", command], cwd=folder, check=False, stdout=subprocess.DEVNULL).returncode:
            raise BuildFailed("runc needs libseccomp, and Debian's package libseccomp-dev cannot be fetched")
    for link in folder.rglob("libseccomp.so"):
        link.unlink()  # the static library is beside it
    [described] = folder.rglob("libseccomp.pc")
    return {**found, "PKG_CONFIG_PATH": str(described.parent), "PKG_CONFIG_SYSROOT_DIR": str(folder)}


def _go_build(
    module: Path, folder: Path, flags: str, package: str, *, environment: dict[str, str] | None = None
) -> None:
    if folder.exists():
        return
    print(f"building {package} of {module.name} into {folder}, once ...", file=sys.stderr, flush=True)
    partial = folder.with_name(f"{folder.name}.partial")
    command = ["go", "build", "-mod=readonly", "-o", f"{partial}/", "-ldflags", flags, package]
    full = {**os.environ, "CGO_ENABLED": "0", **(environment or {})}
    if subprocess.run(command, cwd=module, env=full, check=False).returncode:
        raise BuildFailed(f"{package} of {module} could not be built: see Go's own words above")
    partial.rename(folder)
