"""Kubernetes' cluster-autoscaler, built by Go from the checkout that $AUTOSCALER_SOURCE names, with its provider kwok.

`python -m tests.autoscaler.program` builds it. The provider makes Nodes as objects only. Nothing of the autoscaler is
part of this repository, and Go's module proxy does not serve it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.cluster.binaries import BuildFailed, NoBinaries, cache, printed

VARIABLE = "AUTOSCALER_SOURCE"
_MODULE = "cluster-autoscaler"
_PROVIDER = "kwok"


def find() -> Path:
    """The program. Raises NoBinaries."""
    source, program = _named()
    if os.access(program, os.X_OK):
        return program
    raise NoBinaries(f"{program} is missing: run `make test-autoscaler {VARIABLE}={source}`")


def build() -> Path:
    """Builds what changed: minutes on two cores the first time. Raises NoBinaries, BuildFailed."""
    source, program = _named()
    if shutil.which("go") is None:
        raise NoBinaries("there is no Go, which builds the cluster-autoscaler: see https://go.dev/doc/install")
    print(f"building the cluster-autoscaler of {source} into {program.parent} ...", file=sys.stderr, flush=True)
    words = ["-mod=readonly", "-buildvcs=false", "-tags", _PROVIDER, "-ldflags", "-s -w"]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    command = ["go", "build", *words, "-o", str(program), "."]
    if subprocess.run(command, cwd=source / _MODULE, env=environment, check=False).returncode:
        raise BuildFailed("the cluster-autoscaler could not be built: see the output of Go above")
    return program


def _named() -> tuple[Path, Path]:
    """The checkout, and the program that is built of it. Raises NoBinaries."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        wanted = f"run `make test-autoscaler {VARIABLE}=FOLDER`"
        raise NoBinaries(f"{VARIABLE} names no checkout of kubernetes/autoscaler: {wanted}")
    source = Path(folder).absolute()
    try:
        written = (source / _MODULE / "charts" / _MODULE / "Chart.yaml").read_text(encoding="utf-8")
    except OSError as error:
        raise NoBinaries(f"{VARIABLE}={folder} is no checkout of kubernetes/autoscaler: {error}") from error
    chart = yaml.safe_load(written)["version"]
    return source, cache("autoscaler") / f"chart-{chart}" / _MODULE


if __name__ == "__main__":
    printed(build)
