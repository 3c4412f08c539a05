"""HAMi's scheduler and device plugin, built by Go from the checkout that $HAMI_SOURCE names, and the chart beside them.

`python -m tests.hami.programs` builds them. Nothing of HAMi is part of this repository.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from deviceplugin.settings import HamiScheduler
from tests.cluster.binaries import BuildFailed, NoBinaries, cache, printed

VARIABLE = "HAMI_SOURCE"
SCHEDULER, PLUGIN = "scheduler", "nvidia"
_PACKAGES = ("./cmd/scheduler", "./cmd/device-plugin/nvidia")
"""Go calls a program after its package's folder."""


@dataclass(frozen=True, slots=True)
class Hami:
    """`version` is that of its chart, such as 2.10.0."""

    source: Path
    version: str

    @property
    def chart(self) -> Path:
        return self.source / "charts" / "hami"

    @property
    def folder(self) -> Path:
        return cache("hami") / self.version

    @property
    def handshake(self) -> HamiScheduler:
        """What our daemon is told of this scheduler, as docs/compatibility.md says."""
        release = self.release
        if release <= (2, 4):
            return HamiScheduler.V2_4
        return HamiScheduler.V2_7 if release <= (2, 7) else HamiScheduler.V2_9

    @property
    def release(self) -> tuple[int, int]:
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    def path(self, program: str) -> Path:
        return self.folder / program


def find() -> Hami:
    """What was built of the checkout that $HAMI_SOURCE names. Raises NoBinaries."""
    hami = _named()
    missing = [name for name in (SCHEDULER, PLUGIN) if not os.access(hami.path(name), os.X_OK)]
    if missing:
        raise NoBinaries(f"{hami.folder} has no {', '.join(missing)}: run `make test-hami {VARIABLE}={hami.source}`")
    return hami


def build() -> Hami:
    """Builds what changed: minutes on two cores the first time. Raises NoBinaries, BuildFailed."""
    hami = _named()
    if shutil.which("go") is None:
        raise NoBinaries("there is no Go, which builds HAMi's programs: see https://go.dev/doc/install")
    print(f"building HAMi {hami.version} of {hami.source} into {hami.folder} ...", file=sys.stderr, flush=True)
    hami.folder.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", f"{hami.folder}/", *_PACKAGES]
    if subprocess.run(command, cwd=hami.source, check=False).returncode:
        raise BuildFailed(f"HAMi {hami.version} could not be built: see the output of Go above")
    return hami


def _named() -> Hami:
    """Raises NoBinaries."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise NoBinaries(f"{VARIABLE} names no checkout of HAMi: run `make test-hami {VARIABLE}=FOLDER`")
    try:
        chart = yaml.safe_load((Path(folder) / "charts" / "hami" / "Chart.yaml").read_text(encoding="utf-8"))
    except OSError as error:
        raise NoBinaries(f"{VARIABLE}={folder} is no checkout of HAMi: {error}") from error
    return Hami(Path(folder).absolute(), str(chart["version"]))


if __name__ == "__main__":
    printed(lambda: build().folder)
