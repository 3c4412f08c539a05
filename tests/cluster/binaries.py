"""etcd, kube-apiserver, kube-scheduler and kubectl: found, or built once from their Go modules.

`python -m tests.cluster.binaries [RELEASE]` builds what is missing and prints the folder, for KUBEBUILDER_ASSETS.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
"""A Go module for each release: its `tool` lines are what is built, its go.sum what it is built from."""
NAMES = ("etcd", "kube-apiserver", "kube-scheduler", "kubectl")
NOTHING_TO_BUILD_WITH = 3
"""Exit status; the tests are skipped then."""
_VERSION_VARIABLES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


class NoBinaries(Exception):
    """One sentence on what to do."""


class BuildFailed(Exception):
    """They cannot be built: Go failed, or what a variable names is unknown. One sentence."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder as setup-envtest leaves it, with kube-scheduler beside the rest."""

    folder: Path
    scheduler: Path | None = None
    """Another kube-scheduler than the folder's."""

    def path(self, name: str) -> str:
        return str(self.scheduler if self.scheduler and name == "kube-scheduler" else self.folder / name)

    def missing(self) -> list[str]:
        return [name for name in NAMES if not os.access(self.folder / name, os.X_OK)]


def releases() -> list[str]:
    """The releases that can be built, oldest first."""
    return sorted((path.name for path in TOOLS.iterdir()), key=lambda name: [int(part) for part in name[1:].split(".")])


def find(release: str = "") -> Binaries:
    """$KUBEBUILDER_ASSETS, else what was built of the release (the newest). Raises NoBinaries, BuildFailed."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    found = Binaries(Path(named)) if named else Binaries(_folder(known(release)))
    missing = found.missing()
    if not missing:
        return found
    where = f"KUBEBUILDER_ASSETS={named}" if named else str(found.folder)
    raise NoBinaries(
        f"{where} has no {', '.join(missing)}: run `make test-cluster` where Go is installed, which builds them once, "
        "or set KUBEBUILDER_ASSETS to a folder that holds them"
    )


def build(release: str = "") -> Binaries:
    """`find`, and where that fails builds with Go: ten minutes or more on two cores. Raises NoBinaries, BuildFailed."""
    release = known(release)
    try:
        return find(release)
    except NoBinaries:
        if os.environ.get("KUBEBUILDER_ASSETS") or shutil.which("go") is None:
            raise
    folder = _folder(release)
    partial = folder.parent / f"{folder.name}.partial"
    command = ["go", "build", "-mod=readonly", "-o", f"{partial}/", "-ldflags", ldflags(version(release)), "tool"]
    print(f"building {', '.join(NAMES)} {version(release)} into {folder}, once ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "CGO_ENABLED": "0"}
    if subprocess.run(command, cwd=TOOLS / release, env=environment, check=False).returncode:
        raise BuildFailed(f"Kubernetes {version(release)} could not be built: see Go's own words above")
    # go build calls a program after its package's folder.
    (partial / "server").rename(partial / "etcd")
    partial.rename(folder)
    return Binaries(folder)


def known(release: str) -> str:
    """Returns the named release; the newest if the name is empty. Raises BuildFailed for an unknown name: a suite that
    is skipped looks as if it passed.
    """
    release = release or releases()[-1]
    if release not in releases():
        raise BuildFailed(f"there is no release {release}: KUBERNETES_RELEASE is one of {', '.join(releases())}")
    return release


def _folder(release: str) -> Path:
    return cache("cluster") / version(release)


def cache(kind: str) -> Path:
    """Where what was built once is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "topogpu", kind)


def module_source(module: str, version: str) -> Path:
    """The module's files, read-only. Raises BuildFailed."""
    command = ["go", "mod", "download", "-json", f"{module}@{version}"]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(command, cwd=empty, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BuildFailed(f"{module} {version} could not be fetched: see Go's own words above")
    return Path(json.loads(done.stdout)["Dir"])


def version(release: str) -> str:
    """v1.37.1 for v1.37."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (TOOLS / release / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def ldflags(version: str) -> str:
    """Without the stamps every release calls itself v0.0.0-master."""
    major, minor, _ = version[1:].split(".")
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return "-s -w " + " ".join(f"-X {at}.{key}={value}" for at in _VERSION_VARIABLES for key, value in stamps.items())


def printed(build: Callable[[], object]) -> None:
    """Prints what was built or found; ends the program with `NOTHING_TO_BUILD_WITH` or an error."""
    try:
        print(build())
    except BuildFailed as problem:
        raise SystemExit(f"{problem}.") from None
    except NoBinaries as problem:
        print(f"{problem}.", file=sys.stderr)
        raise SystemExit(NOTHING_TO_BUILD_WITH) from None


if __name__ == "__main__":
    printed(lambda: build(*sys.argv[1:2]).folder)
