"""Kubernetes' controller of Jobs alone, from the code of kube-controller-manager: found, or built once with Go.

`python -m tests.cluster.job_controller RELEASE` builds it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.binaries import (
    NOTHING_TO_BUILD_WITH,
    TOOLS,
    BuildFailed,
    NoBinaries,
    cache,
    known,
    ldflags,
    version,
)

NAME = "jobs"
_PACKAGE = "./jobs"
"""In the module that the release's other programs are built from, so that most of it is compiled already.
kube-controller-manager would bring volumes, clouds and half of kubelet.
"""


def find(release: str = "") -> Path:
    """The program. Raises NoBinaries."""
    program = cache("job-controller") / version(known(release)) / NAME
    if os.access(program, os.X_OK):
        return program
    raise NoBinaries(f"{program} is missing: run `make test-cluster` where Go is installed, which builds it once")


def build(release: str = "") -> Path:
    """`find`, and where that fails builds with Go: minutes on two cores. Raises NoBinaries, BuildFailed."""
    release = known(release)
    try:
        return find(release)
    except NoBinaries:
        if shutil.which("go") is None:
            raise
    folder = cache("job-controller") / version(release)
    print(f"building the controller of Jobs into {folder}, once ...", file=sys.stderr, flush=True)
    command = ["go", "build", "-mod=readonly", "-o", f"{folder}/", "-ldflags", ldflags(version(release)), _PACKAGE]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    if subprocess.run(command, cwd=TOOLS / release, env=environment, check=False).returncode:
        raise BuildFailed(f"the controller of Jobs {version(release)} could not be built: see Go's own words above")
    return find(release)


if __name__ == "__main__":
    try:
        print(build(sys.argv[1] if len(sys.argv) > 1 else ""))
    except BuildFailed as problem:
        raise SystemExit(f"{problem}.") from None
    except NoBinaries as problem:
        print(f"{problem}.", file=sys.stderr)
        raise SystemExit(NOTHING_TO_BUILD_WITH) from None
