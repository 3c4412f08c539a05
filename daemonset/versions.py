"""The version of a release: `proto.__version__`, and the files that repeat it.

`python -m daemonset.versions NUMBER`, which `make version VERSION=NUMBER` calls, writes it into all of them, and makes
the release's section of CHANGELOG.md of what stands under Unreleased.
"""

import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(rc|beta)\.[1-9]\d*)?")
"""The part of Semantic Versioning that Python's packages and charts both accept."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and what stands before the version there."""

    path: str
    before: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"({self.before})({NUMBER.pattern})")


_IMAGE = r"topogpu(?:-simulated|-simulation)?:"
PLACES = (
    Place("proto/__init__.py", r'__version__ = "'),
    Place("pyproject.toml", r"topogpu-simulation=="),
    Place("simulation/pyproject.toml", r'\nversion = "'),
    Place("simulation/pyproject.toml", r"topogpu=="),
    Place("simulation/plan/Dockerfile", _IMAGE),
    Place("simulation/plan/job.yaml", _IMAGE),
    Place("daemonset/chart/topogpu/Chart.yaml", r"\nversion: "),
    Place("daemonset/chart/topogpu/Chart.yaml", r'\nappVersion: "'),
    Place("daemonset/uninstall/daemonset.yaml", _IMAGE),
    Place("daemonset/Dockerfile", _IMAGE),
    Place("daemonset/simulated.Dockerfile", _IMAGE),
    Place("docs/install.md", _IMAGE),
    Place("docs/install.md", r"newTag: "),
    Place("docs/simulation.md", _IMAGE),
)
"""The rendered manifests follow the chart: `make manifests`."""


def order(number: str) -> tuple[int, ...]:
    """Sorts versions: 1.0.0-beta.2, 1.0.0-rc.1, 1.0.0."""
    found = NUMBER.fullmatch(number)
    assert found is not None
    kind = {"beta": 0, "rc": 1, None: 2}[found[5]]
    return (*map(int, found.group(1, 2, 3)), kind, int((found[4] or "0").rpartition(".")[2]))


def others(number: str, root: Path = ROOT) -> list[str]:
    """Returns files with another version, or with none."""

    def has_it(place: Place) -> bool:
        text = (root / place.path).read_text(encoding="utf-8")
        return {match[2] for match in place.pattern.finditer(text)} == {number}

    return list(dict.fromkeys(place.path for place in PLACES if not has_it(place)))


def write(number: str, root: Path = ROOT) -> None:
    for place in PLACES:
        path = root / place.path
        path.write_text(place.pattern.sub(rf"\g<1>{number}", path.read_text(encoding="utf-8")), encoding="utf-8")


def cut(changelog: str, number: str, date: str) -> str:
    """Returns the text with the entries under Unreleased as the section of this version; unchanged if there is one."""
    heading = f"## [{number}]"
    if f"\n{heading}" in changelog:
        return changelog
    return changelog.replace("\n## [Unreleased]\n", f"\n## [Unreleased]\n\n{heading} - {date}\n", 1)


def main() -> None:
    match sys.argv[1:]:
        case [number] if NUMBER.fullmatch(number):
            write(number)
            changelog, today = ROOT / "CHANGELOG.md", datetime.now(UTC).date()  # noqa: TID251 - a person's calendar
            changelog.write_text(cut(changelog.read_text(encoding="utf-8"), number, f"{today}"), encoding="utf-8")
            print(f"{number} is the version everywhere; look at its section of CHANGELOG.md, and commit.")
        case _:
            raise SystemExit("Give a version such as VERSION=0.2.0 or VERSION=0.2.0-rc.1.")


if __name__ == "__main__":
    main()
