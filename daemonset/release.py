"""Builds everything of a release: `python -m daemonset.release NUMBER`, which `make release VERSION=NUMBER` calls.

It writes to `build/release/NUMBER`: wheels and source archives, image and chart as OCI archives, the bill of materials,
the release's section of CHANGELOG.md, and checksums of all. Without `--publish` nothing leaves this machine, and no tag
is made.
"""

import argparse
import hashlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from daemonset import helm, image, oci_chart, render, versions
from daemonset.image_archive import Archive
from daemonset.image_check import BILL

ROOT = versions.ROOT
NOTES, SUMS = "release-notes.md", "SHA256SUMS"


class CannotRelease(Exception):
    """Sentences: what is wrong, and what to do."""


def problems(number: str, changelog: str, status: str) -> Iterator[str]:
    """Sentences for all that speaks against it; `status` is what `git status --porcelain` prints."""
    if not versions.NUMBER.fullmatch(number):
        yield f"{number} is no version: give one such as 0.2.0 or 0.2.0-rc.1."
        return
    if status:
        yield "The working tree has changes that are not committed: commit them."
    for problem in versions.others(number):
        yield f"{problem} Run `make version VERSION={number}` and `make manifests`, and commit."
    if not section(changelog, number):
        yield f"CHANGELOG.md has no section `## [{number}] - YEAR-MONTH-DAY` with text: write it."


def section(changelog: str, number: str) -> str:
    """The text below the heading of this version; empty where there is none."""
    heading = rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |^\[[^]]+\]: |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def checksums(folder: Path) -> str:
    """A line for each file, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def build(number: str, base: str, folder: Path) -> None:
    """Raises CannotRelease, image.CannotBuild, helm.NoHelm."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    epoch = {"SOURCE_DATE_EPOCH": str(image.commit().seconds)}
    for source in (ROOT, ROOT / "simulation"):
        image.run([sys.executable, "-m", "build", "--outdir", str(folder), str(source)], epoch)
    archive = image.build(base, f"topogpu:{number}")
    shutil.copy(archive, folder / f"topogpu-{number}-image.tar")
    (folder / f"topogpu-{number}.cdx.json").write_bytes(Archive(archive).read(BILL))
    image.run([str(helm.build()), "package", str(render.CHART), "--destination", str(folder)], epoch)
    oci_chart.pack(folder / f"topogpu-{number}.tgz", folder / f"topogpu-{number}-chart.tar")
    (folder / NOTES).write_text(section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number) + "\n")
    (folder / SUMS).write_text(checksums(folder))


def publish(number: str, registry: str, folder: Path) -> list[list[str]]:
    """The commands that publish, in their order: the tag comes last, for it says that all is there."""
    engine = image.find_engine()
    return [
        [*engine.words, "push", f"topogpu:{number}", f"docker://{registry}/topogpu:{number}"],
        [str(helm.find()), "push", str(folder / f"topogpu-{number}.tgz"), f"oci://{registry}/charts"],
        ["git", "-C", str(ROOT), "tag", "--annotate", f"v{number}", "--file", str(folder / NOTES)],
        ["git", "-C", str(ROOT), "push", "origin", f"v{number}"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.splitlines()[0])
    parser.add_argument("number", metavar="VERSION")
    parser.add_argument("--base", choices=["registry", "debian"], default="registry", help="As for make image.")
    parser.add_argument("--publish", metavar="REGISTRY", default="", help="Push there, and tag. Empty: build only.")
    given = parser.parse_args()
    status = image.run(["git", "-C", str(ROOT), "status", "--porcelain"])
    found = list(problems(given.number, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), status))
    if found:
        raise CannotRelease("\n".join(found))
    folder = ROOT / "build" / "release" / given.number
    build(given.number, given.base, folder)
    print((folder / SUMS).read_text(), end="")
    for words in publish(given.number, given.publish or "REGISTRY", folder):
        if given.publish:
            image.run(words, shown=True)
        else:
            print(f"not run: {' '.join(words)}")


if __name__ == "__main__":
    try:
        main()
    except (CannotRelease, image.CannotBuild, helm.NoHelm, helm.BuildFailed) as problem:
        raise SystemExit(str(problem)) from None
