"""The version of a release: `proto.__version__`, and the files that repeat it.

`python -m daemonset.versions NUMBER`, which `make version VERSION=NUMBER` calls, writes it into all of them.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proto import __version__

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(rc|beta)\.[1-9]\d*)?")
"""Of Semantic Versioning what Python's packages and charts both take."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and what stands before the version there."""

    path: str
    before: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"({self.before})({NUMBER.pattern})")


PLACES = (
    Place("proto/__init__.py", r'__version__ = "'),
    Place("pyproject.toml", r"topogpu-simulation=="),
    Place("simulation/pyproject.toml", r'\nversion = "'),
    Place("simulation/pyproject.toml", r"topogpu=="),
    Place("daemonset/chart/topogpu/Chart.yaml", r"\nversion: "),
    Place("daemonset/chart/topogpu/Chart.yaml", r'\nappVersion: "'),
    Place("daemonset/uninstall/daemonset.yaml", r"image: topogpu:"),
    Place("daemonset/Dockerfile", r"topogpu:"),
    Place("docs/install.md", r"topogpu:"),
    Place("docs/install.md", r"newTag: "),
    Place("tests/daemonset/test_least_privilege.py", r'"topogpu:'),
)
"""The rendered manifests follow the chart: `make manifests`."""


def others(number: str, root: Path = ROOT) -> Iterator[str]:
    """A sentence for every place with another version, or with none."""
    for place in PLACES:
        found = {match[2] for match in place.pattern.finditer((root / place.path).read_text(encoding="utf-8"))}
        if found != {number}:
            said = " and ".join(sorted(found)) or "no version"
            yield f"{place.path} has {said} after {place.before.strip()!r}, not {number}."


def write(number: str, root: Path = ROOT) -> None:
    for place in PLACES:
        path = root / place.path
        path.write_text(place.pattern.sub(rf"\g<1>{number}", path.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    match sys.argv[1:]:
        case [number] if NUMBER.fullmatch(number):
            write(number)
            print(f"{__version__} became {number}; run `make manifests`, and give CHANGELOG.md its section.")
        case _:
            raise SystemExit("Give a version such as 0.2.0 or 0.2.0-rc.1.")


if __name__ == "__main__":
    main()
