"""kubelet, a container runtime and runc: found, or built once from their Go modules.

`python -m tests.node.binaries [RELEASE [RUNTIME]]` builds what is missing and prints the folder, for NODE_ASSETS.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tests.cluster.binaries import BuildFailed, NoBinaries, cache, known, ldflags, printed, version

TOOLS = Path(__file__).parent / "tools"
"""Two Go modules are built together: `runtime`, and the release's with kubelet alone."""
_RUNC = "github.com/opencontainers/runc"
_CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
NEWEST_CONTAINERD = "containerd"
"""Built together with kubelet and runc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """A runtime that is built by itself, from the source of its module and by its own list of dependencies."""

    module: str
    version: str
    names: tuple[str, ...]
    packages: tuple[str, ...]
    tags: str = ""
    cgo: bool = False
    says: str = ""
    """The release that it calls itself, where its source says another."""
    by_git: bool = False
    """From the repository's tag, because Go's module proxy has something else of that name."""

    @property
    def folder(self) -> Path:
        return cache("node") / f"{self.module.rpartition('/')[2]}-{self.says or self.version}"


_CRIO = _Other(
    module="github.com/cri-o/cri-o",
    version="v1.34.0",
    names=("crio", "pinns", "conmon"),
    packages=("./cmd/crio",),
    tags="containers_image_openpgp,exclude_graphdriver_btrfs",
    cgo=True,
    by_git=True,
)
_OTHERS = {
    "containerd-1.7": _Other(
        module="github.com/containerd/containerd",
        version="v1.7.35",
        names=_CONTAINERD,
        packages=tuple(f"./cmd/{name}" for name in _CONTAINERD),
    ),
    "cri-o": _CRIO,
    # The proxy's v1.34.0 is older than the release and than pull request 9292, as 1.33.2 is.
    "cri-o-1.33": replace(_CRIO, says="v1.33.2", by_git=False),
}
RUNTIMES = (NEWEST_CONTAINERD, *_OTHERS)


@dataclass(frozen=True, slots=True)
class NodeBinaries:
    """Two folders that hold them all; the same one where the runtime was built together with kubelet."""

    folder: Path
    runtime_folder: Path
    runtime: str

    @property
    def search_path(self) -> str:
        return f"{self.runtime_folder}:{self.folder}:/usr/sbin:/usr/bin:/sbin:/bin"

    def path(self, name: str) -> str:
        return str((self.runtime_folder if name in _names(self.runtime) else self.folder) / name)

    def missing(self) -> list[str]:
        names = ("kubelet", "runc", *_names(self.runtime))
        return [name for name in names if not os.access(self.path(name), os.X_OK)]


def find(release: str = "", runtime: str = "") -> NodeBinaries:
    """$NODE_ASSETS, else what was built for release (the newest) and runtime. Raises NoBinaries, BuildFailed."""
    runtime = runtime or NEWEST_CONTAINERD
    if runtime not in RUNTIMES:
        raise BuildFailed(f"there is no runtime {runtime}: NODE_RUNTIME is one of {', '.join(RUNTIMES)}")
    named = os.environ.get("NODE_ASSETS")
    folder = Path(named) if named else _folder(known(release))
    other = _OTHERS.get(runtime)
    found = NodeBinaries(folder, folder if named or other is None else other.folder, runtime)
    missing = found.missing()
    if not missing:
        return found
    where = f"NODE_ASSETS={named}" if named else f"{found.folder} and {found.runtime_folder}"
    raise NoBinaries(
        f"{where} have no {', '.join(missing)}: run `make test-node` where Go and gcc are installed, which builds them "
        "once, or set NODE_ASSETS to a folder that holds them"
    )


def build(release: str = "", runtime: str = "") -> NodeBinaries:
    """`find`, and where that fails builds with Go: minutes on two cores. Raises NoBinaries, BuildFailed."""
    release = known(release)
    try:
        return find(release, runtime)
    except NoBinaries:
        able = shutil.which("go") and shutil.which("gcc")
        if os.environ.get("NODE_ASSETS") or not able:
            raise
    if find_problem(release):
        _build_newest(release)
    if runtime in _OTHERS and find_problem(release, runtime):
        _build_other(_OTHERS[runtime])
    return find(release, runtime)


def find_problem(release: str, runtime: str = "") -> str:
    """Why they cannot be found; empty where they can."""
    try:
        find(release, runtime)
    except NoBinaries as problem:
        return str(problem)
    return ""


def _names(runtime: str) -> tuple[str, ...]:
    return _OTHERS[runtime].names if runtime in _OTHERS else _CONTAINERD


def _build_newest(release: str) -> None:
    folder = _folder(release)
    partial = folder.parent / f"{folder.name}.partial"
    print(f"building kubelet, runc and containerd into {folder}, once ...", file=sys.stderr, flush=True)
    runtime = TOOLS / "runtime"
    _go_build(runtime, partial, "-s -w", *(package for package in _tools(runtime) if package != _RUNC))
    with tempfile.TemporaryDirectory() as source:
        # runc enters its namespaces in C.
        _go_build(_runc_source(Path(source, "runc")), partial, "-s -w", ".", cgo=True)
    _go_build(TOOLS / release, partial, ldflags(version(release)), *_tools(TOOLS / release))
    partial.rename(folder)


def _build_other(runtime: _Other) -> None:
    folder = runtime.folder
    partial = folder.parent / f"{folder.name}.partial"
    print(f"building {', '.join(runtime.names)} into {folder}, once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        fetch = _cloned if runtime.by_git else _source
        source = fetch(f"{runtime.module}@{runtime.version}", Path(temporary, "source"), Path(temporary))
        if runtime.says:
            said = source / "internal" / "version" / "version.go"
            said.write_text(said.read_text().replace(f'"{runtime.version[1:]}"', f'"{runtime.says[1:]}"'))
        _go_build(source, partial, "-s -w", *runtime.packages, cgo=runtime.cgo, tags=runtime.tags)
        if "pinns" in runtime.names:
            code = sorted(map(str, (source / "pinns" / "src").glob("*.c")))
            command = ["gcc", "-std=c99", "-O2", "-static", "-o", str(partial / "pinns"), *code]
            if subprocess.run(command, check=False).returncode:
                raise BuildFailed("pinns of CRI-O could not be built: see gcc's own words above")
        if "conmon" in runtime.names:
            shutil.copy(_conmon(Path(temporary)), partial / "conmon")
    partial.rename(folder)


def _conmon(temporary: Path) -> Path:
    """The installed one, else the one of Debian's package: it is written in C and needs GLib. Raises BuildFailed."""
    installed = shutil.which("conmon")
    if installed is not None:
        return Path(installed)
    for command in (["apt-get", "download", "conmon"], ["sh", "-c", "dpkg -x conmon_*.deb ."]):
        if subprocess.run(command, cwd=temporary, check=False, stdout=subprocess.DEVNULL).returncode:
            raise BuildFailed("CRI-O needs conmon, which is not installed, and Debian's package cannot be fetched")
    return temporary / "usr" / "bin" / "conmon"


def _go_build(module: Path, folder: Path, flags: str, *packages: str, cgo: bool = False, tags: str = "") -> None:
    command = ["go", "build", "-mod=readonly", "-tags", tags, "-o", f"{folder}/", "-ldflags", flags, *packages]
    environment = {**os.environ, "CGO_ENABLED": str(int(cgo))}
    if subprocess.run(command, cwd=module, env=environment, check=False).returncode:
        raise BuildFailed(f"{' '.join(packages)} of {module.name} could not be built: see Go's own words above")


def _runc_source(copy: Path) -> Path:
    """The module's source, except that filters of system calls are left out: libseccomp is rarely installed, and
    without it runc refuses every sandbox. Raises BuildFailed.
    """
    _source(_RUNC, copy, TOOLS / "runtime")
    shutil.copyfile(TOOLS / "seccomp_ignored.go.txt", copy / "libcontainer" / "seccomp" / "seccomp_unsupported.go")
    return copy


def _source(module: str, copy: Path, asked_in: Path) -> Path:
    """The module's files, which may be changed. Raises BuildFailed."""
    command = ["go", "mod", "download", "-json", module]
    done = subprocess.run(command, cwd=asked_in, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BuildFailed(f"{module} could not be fetched: see Go's own words above")
    # Without the modes, which are read-only there.
    shutil.copytree(json.loads(done.stdout)["Dir"], copy, copy_function=shutil.copyfile)
    return copy


def _cloned(module: str, copy: Path, asked_in: Path) -> Path:
    """As `_source`, from the module's repository."""
    name, _, tag = module.partition("@")
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, f"https://{name}", str(copy)]
    if subprocess.run(command, cwd=asked_in, check=False).returncode:
        raise BuildFailed(f"{module} could not be fetched: see git's own words above")
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
    printed(lambda: build(*sys.argv[1:]).folder)
