"""The kube-scheduler of kubernetes-sigs/scheduler-plugins, which knows Coscheduling: found, or built once with Go.

`python -m tests.cluster.coscheduling RELEASE` builds it for the Kubernetes release that it is made for, for no other.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.binaries import BuildFailed, NoBinaries, cache, module_source, printed

MODULE, VERSION = "sigs.k8s.io/scheduler-plugins", "v0.29.7"
RELEASE = "v1.29"
"""Of Kubernetes. Releases of scheduler-plugins are numbered after it."""
SCHEDULER, DEFINITION = "kube-scheduler", "podgroups.yaml"
_STAMP = f"-s -w -X k8s.io/component-base/version.gitVersion={VERSION}"


def find() -> Path:
    """A folder with SCHEDULER and with the definition of PodGroups. Raises NoBinaries."""
    folder = cache("scheduler-plugins") / VERSION
    if os.access(folder / SCHEDULER, os.X_OK) and (folder / DEFINITION).exists():
        return folder
    raise NoBinaries(
        f"{folder} has no {SCHEDULER} with Coscheduling: run `make test-cluster KUBERNETES_RELEASE={RELEASE}` where Go "
        "is installed, which builds it once"
    )


def build() -> Path:
    """`find`, and where that fails builds with Go: minutes on two cores. Raises NoBinaries, BuildFailed."""
    try:
        return find()
    except NoBinaries:
        if shutil.which("go") is None:
            raise
    folder = cache("scheduler-plugins") / VERSION
    partial = folder.parent / f"{folder.name}.partial"
    print(f"building {SCHEDULER} {VERSION} of scheduler-plugins into {folder}, once ...", file=sys.stderr, flush=True)
    source = module_source(MODULE, VERSION)
    partial.mkdir(parents=True, exist_ok=True)
    # By its own list of dependencies, which lies beside the source.
    command = ["go", "build", "-mod=readonly", "-o", str(partial / SCHEDULER), "-ldflags", _STAMP, "./cmd/scheduler"]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    if subprocess.run(command, cwd=source, env=environment, check=False).returncode:
        raise BuildFailed(f"{MODULE} {VERSION} could not be built: see Go's own words above")
    shutil.copyfile(source / "manifests" / "coscheduling" / "crd.yaml", partial / DEFINITION)
    partial.rename(folder)
    return folder


if __name__ == "__main__":
    if sys.argv[1:] == [RELEASE]:
        printed(build)
