"""Runs the Dockerfile's own steps without a container engine: `python -m daemonset.image_check`.

It runs every COPY and RUN in order, with the image's folders below a temporary one and this machine's Python. Then it
starts both programs from the last stage. It cannot check what needs an engine: that the base image exists, file owners,
the user, and the size of the layers.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dockerfile

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "daemonset" / "Dockerfile"
_OURS = re.compile(r"(?<![\w./-])/(src|build|dist|opt)(?=/|\s|$)")
"""Folders of the image that the steps create or read."""


class StepFailed(Exception):
    """A step failed; the message has the step and the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction, as BuildKit's parser reads it."""

    instruction: str
    flags: Sequence[str]
    arguments: Sequence[str]
    original: str


def steps(path: Path = DOCKERFILE) -> list[Step]:
    """Raises dockerfile.GoParseError."""
    return [
        Step(instruction=one.cmd.upper(), flags=one.flags, arguments=one.value, original=one.original)
        for one in dockerfile.parse_file(str(path))
    ]


def build(image: Path) -> Mapping[str, str]:
    """Runs the Dockerfile below the folder `image` and returns the environment of its last stage. Raises StepFailed."""
    environment: dict[str, str] = {}
    folder = image
    for step in steps():
        match step.instruction:
            case "FROM":
                environment = dict(os.environ)
            case "ARG" if "=" in step.arguments[0]:
                name, _, value = step.arguments[0].partition("=")
                environment[name] = value
            case "ENV":
                pairs = list(zip(step.arguments[::2], step.arguments[1::2], strict=True))
                environment |= {name: _inside(image, value) for name, value in pairs}
            case "WORKDIR":
                folder = image / step.arguments[0].lstrip("/")
                folder.mkdir(parents=True, exist_ok=True)
            case "COPY":
                _copy(step, image, folder)
            case "RUN":
                _run(_inside(image, step.arguments[0]), folder, environment)
    return environment


def _copy(step: Step, image: Path, folder: Path) -> None:
    *sources, target = step.arguments
    if any(flag.startswith("--from=") for flag in step.flags):
        # One tree serves all stages: what is copied must exist at the same path.
        if sources != [target] or not Path(_inside(image, target)).exists():
            raise StepFailed(f"{step.original}: the stage before did not create {target}")
        return
    for source in sources:
        destination = folder / target / Path(source).name if target.endswith("/") else folder / target
        destination.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, destination)


def _inside(image: Path, text: str) -> str:
    return _OURS.sub(lambda found: f"{image}/{found[1]}", text)


def _run(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    print(f"RUN {command}", file=sys.stderr, flush=True)
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise StepFailed(f"RUN {command}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        image = Path(made)
        environment = build(image)
        for command in ("deviceplugin --version", "scheduler_ext --version", "deviceplugin run --help"):
            said = _run(f"{image}/opt/topogpu/bin/python -m {command}", image, environment)
            print(said.splitlines()[0])
        bill = json.loads((image / "opt/topogpu/sbom.cdx.json").read_text())
        megabytes = sum(path.lstat().st_size for path in (image / "opt").rglob("*")) / 2**20
        print(f"{bill['bomFormat']} {bill['specVersion']}: {len(bill['components'])} components")
        print(f"{megabytes:.0f} MiB beside the base image")


if __name__ == "__main__":
    try:
        main()
    except StepFailed as problem:
        raise SystemExit(str(problem)) from None
