"""Finds Helm, or builds it once from its Go module.

`python -m daemonset.helm` builds it if necessary and prints its path. Exit status 3: Go is missing.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = Path(__file__).parent / "tools" / "helm"
"""Its `tool` line names what is built, and its go.sum the sources."""
NOTHING_TO_BUILD_WITH = 3


class NoHelm(Exception):
    """Helm is missing; the message is one sentence on what to do."""


class HelmBuildFailed(Exception):
    """Go could not build it."""


def find() -> Path:
    """Returns $HELM, else the Helm that was built. Raises NoHelm."""
    named = os.environ.get("HELM")
    helm = Path(named) if named else _built()
    if os.access(helm, os.X_OK):
        return helm
    where = f"HELM={named} is not a program" if named else f"there is no {helm}"
    raise NoHelm(
        f"{where}: run `make manifests` where Go is installed, which builds it once, or set HELM to Helm 3 or 4"
    )


def build() -> Path:
    """Finds Helm, else builds it with Go, which takes minutes on two cores. Raises NoHelm, BuildFailed."""
    try:
        return find()
    except NoHelm:
        if os.environ.get("HELM") or shutil.which("go") is None:
            raise
    helm, version = _built(), _version()
    stamp = f"-s -w -X helm.sh/helm/v{version[1]}/internal/version.version={version}"
    partial = helm.parent.with_name(f"{version}.partial")
    print(f"building helm {version} into {helm.parent}, once ...", file=sys.stderr, flush=True)
    command = ["go", "build", "-mod=readonly", "-trimpath", "-o", f"{partial}/", "-ldflags", stamp, "tool"]
    if subprocess.run(command, cwd=MODULE, env={**os.environ, "CGO_ENABLED": "0"}, check=False).returncode:
        raise HelmBuildFailed(f"Helm {version} could not be built: see the output of Go above")
    partial.rename(helm.parent)
    return helm


def _built() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "topogpu" / "helm" / _version() / "helm"


def _version() -> str:
    found = re.search(r"^\s*helm\.sh/helm/v\d+ (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    try:
        print(build())
    except HelmBuildFailed as problem:
        raise SystemExit(f"{problem}.") from None
    except NoHelm as problem:
        print(f"{problem}.", file=sys.stderr)
        raise SystemExit(NOTHING_TO_BUILD_WITH) from None
