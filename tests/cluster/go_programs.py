"""Two programs of the release's Go module beside its own: found, or built once with Go.

Most of them is compiled already with the release's. `python -m tests.cluster.go_programs RELEASE` builds both.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.cluster.binaries import TOOLS, BuildFailed, NoBinaries, cache, known, ldflags, printed, version

PLUGIN, WHERE = "Refusing", "example.com/refused-at"
"""A plugin of kube-scheduler, and the annotation that names the extension point at which it refuses a pod."""


@dataclass(frozen=True, slots=True)
class GoProgram:
    """`package` is its folder in the module, and `words` what it is."""

    package: str
    words: str
    kept: str
    """Its folder among what was built."""

    def find(self, release: str = "") -> Path:
        """The program. Raises NoBinaries, BuildFailed."""
        program = cache(self.kept) / version(known(release)) / self.package
        if os.access(program, os.X_OK):
            return program
        raise NoBinaries(f"{program} is missing: run `make test-cluster` where Go is installed, which builds it once")

    def build(self, release: str = "") -> Path:
        """`find`, and where that fails builds with Go: minutes on two cores. Raises NoBinaries, BuildFailed."""
        release = known(release)
        try:
            return self.find(release)
        except NoBinaries:
            if shutil.which("go") is None:
                raise
        folder, flags = cache(self.kept) / version(release), ldflags(version(release))
        print(f"building {self.words} {version(release)} into {folder}, once ...", file=sys.stderr, flush=True)
        command = ["go", "build", "-mod=readonly", "-o", f"{folder}/", "-ldflags", flags, f"./{self.package}"]
        environment = {**os.environ, "CGO_ENABLED": "0"}
        if subprocess.run(command, cwd=TOOLS / release, env=environment, check=False).returncode:
            raise BuildFailed(f"{self.words} {version(release)} could not be built: see Go's own words above")
        return self.find(release)


JOB_CONTROLLER = GoProgram("jobs", "the controller of Jobs", "job-controller")
"""Kubernetes' own, alone: kube-controller-manager would bring volumes, clouds and half of kubelet."""
REFUSING = GoProgram("refusing", "kube-scheduler with the tests' plugin", "refusing")


if __name__ == "__main__":
    for each in (REFUSING, JOB_CONTROLLER):
        printed(partial(each.build, *sys.argv[1:2]))
