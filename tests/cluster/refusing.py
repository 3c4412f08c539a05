"""kube-scheduler with a plugin of the tests, which refuses a pod on demand: found, or built once with Go.

`python -m tests.cluster.refusing RELEASE` builds it. The annotation WHERE names the extension point.
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

PLUGIN, WHERE = "Refusing", "example.com/refused-at"
_PACKAGE = "./refusing"
"""In the module that the release's own programs are built from, so that most of it is compiled already."""


def find(release: str = "") -> Path:
    """The program. Raises NoBinaries."""
    program = cache("refusing") / version(known(release)) / "refusing"
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
    folder = cache("refusing") / version(release)
    print(f"building kube-scheduler with the tests' plugin into {folder}, once ...", file=sys.stderr, flush=True)
    flags = ldflags(version(release))
    command = ["go", "build", "-mod=readonly", "-o", f"{folder}/", "-ldflags", flags, _PACKAGE]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    if subprocess.run(command, cwd=TOOLS / release, env=environment, check=False).returncode:
        raise BuildFailed(f"kube-scheduler {version(release)} could not be built: see Go's own words above")
    return find(release)


if __name__ == "__main__":
    try:
        print(build(sys.argv[1] if len(sys.argv) > 1 else ""))
    except BuildFailed as problem:
        raise SystemExit(f"{problem}.") from None
    except NoBinaries as problem:
        print(f"{problem}.", file=sys.stderr)
        raise SystemExit(NOTHING_TO_BUILD_WITH) from None
