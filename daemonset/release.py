"""Builds everything of a release: `python -m daemonset.release NUMBER`, which `make release VERSION=NUMBER` calls.

It runs `make check` and writes to `build/release/NUMBER`: wheels and source archives, images and chart as OCI archives,
the kubectl plugin of each platform, the bill of materials, the release's section of CHANGELOG.md, and checksums of all.
Then it tags the commit, in this clone. Without `--publish` nothing leaves this machine.
"""

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemonset import helm, image, image_check, plugin, render, versions
from daemonset.image_archive import Archive, retar
from daemonset.image_check import BILL

ROOT = versions.ROOT
NOTES, SUMS = "release-notes.md", "SHA256SUMS"
EXPLOITABILITY = ROOT / "daemonset" / "topogpu.openvex.json"
"""Findings of scanners in the image's base that cannot harm its programs, in OpenVEX 0.2.0."""


PROCESSORS = ("x86_64", "aarch64")


class CannotRelease(Exception):
    """Sentences: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The release that is made. `status` is what `git status --porcelain` prints. `tags` are the tagged versions with
    their commits, `earlier` those of HEAD and of the commits before it.
    """

    changelog: str
    status: str = ""
    head: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    earlier: frozenset[str] = frozenset()


def tree() -> Tree:
    """Raises image.CannotBuild."""
    return Tree(
        changelog=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        status=_git("status", "--porcelain"),
        head=_git("rev-parse", "HEAD").strip(),
        tags={name: _git("rev-parse", f"v{name}^{{commit}}").strip() for name in _tagged()},
        earlier=frozenset(_tagged("--merged=HEAD")),
    )


def problems(number: str, found: Tree) -> Iterator[str]:
    """Yields sentences for all that prevents it."""
    if not versions.NUMBER.fullmatch(number):
        yield f"{number or 'Nothing'} is no version: give one such as VERSION=0.2.0 or VERSION=0.2.0-rc.1."
        return
    if found.status:
        yield "The working tree has changes that are not committed: commit them, or put them away with `git stash -u`."
    write = f"run `make version VERSION={number}`, and commit"
    if others := versions.others(number):
        yield f"{number} is not the version in {', '.join(others)}: {write}."
    if not section(found.changelog, number):
        yield (
            f"CHANGELOG.md has no section `## [{number}] - YEAR-MONTH-DAY` with text: {write}; it makes the section of "
            "what stands under `## [Unreleased]`."
        )
    tagged = found.tags.get(number)
    if tagged not in (None, found.head):
        yield f"The tag v{number} exists, at commit {tagged}: a release is not changed, so give a higher version."
    higher = [name for name in found.earlier if versions.order(name) > versions.order(number)]
    if higher:
        yield f"v{max(higher, key=versions.order)} was released before this commit: give a higher version than that."


def missing(base: str, *, tags: bool) -> Iterator[str]:
    """Yields sentences for the programs that are not here; `tags`: a tag will be made."""
    try:
        image.find_engine()
    except image.CannotBuild as problem:
        yield str(problem)
    if base == "debian" and shutil.which("mmdebstrap") is None:
        yield "mmdebstrap makes the base image and is not here; install it (Debian: apt install mmdebstrap)."
    try:
        helm.find()
    except helm.NoHelm as problem:
        if os.environ.get("HELM") or shutil.which("go") is None:
            yield f"{problem}."
    identity = ["git", "-C", str(ROOT), "var", "GIT_COMMITTER_IDENT"]
    if tags and subprocess.run(identity, capture_output=True, check=False).returncode:
        yield "git does not know who makes the tag: set user.name and user.email with `git config`."


def section(changelog: str, number: str) -> str:
    """Returns the text below the heading of this version; empty where there is none."""
    heading = rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |^\[[^]]+\]: |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def checksums(folder: Path) -> str:
    """Returns a line for each file, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def build(number: str, base: str, folder: Path, url: str = "") -> None:
    """Builds all or nothing: what is not complete is removed. Users download the kubectl plugin from `url`. Without
    it there is no manifest for krew. Raises image.CannotBuild, helm.NoHelm, helm.HelmBuildFailed, plugin.BuildError.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _build(number, base, partial, url)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _build(number: str, base: str, folder: Path, url: str) -> None:
    epoch = {"SOURCE_DATE_EPOCH": str(image.commit().seconds)}
    product = f"topogpu:{number}"
    path = image.build(base, product)
    archive = Archive(path)
    image_check.look(archive, product)
    shutil.copy(path, folder / f"topogpu-{number}-image.tar")
    (folder / f"topogpu-{number}.cdx.json").write_bytes(archive.read(BILL))
    shutil.copy(EXPLOITABILITY, folder / f"topogpu-{number}.openvex.json")
    path = image.build_simulated(base, product)
    image_check.look_at_simulated(archive, Archive(path), image.simulated(product))
    shutil.copy(path, folder / f"topogpu-simulated-{number}-image.tar")
    image.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], epoch)
    _build_simulation(folder, epoch)
    plugin.release(folder, url)
    image.run([str(helm.build()), "package", str(render.CHART), "--destination", str(folder)], epoch)
    for packed in (*folder.glob("topogpu*.tar.gz"), folder / f"topogpu-{number}.tgz"):
        retar(packed, int(epoch["SOURCE_DATE_EPOCH"]))
    (folder / NOTES).write_text(section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number) + "\n")
    (folder / SUMS).write_text(checksums(folder))


def _build_simulation(folder: Path, environment: Mapping[str, str]) -> None:
    """Builds its source archive, and a wheel with the simulated driver for each kind of processor: ziglang compiles for
    all of them, and for every glibc since 2.17.
    """
    build = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT / "simulation")]
    image.run([*build, "--sdist"], environment)
    for processor in PROCESSORS:
        compiler = f"{shlex.quote(sys.executable)} -m ziglang cc -target {processor}-linux-gnu.2.17"
        platform = f"--config-setting=--build-option=--plat-name=manylinux_2_17_{processor}"
        image.run([*build, "--wheel", platform], {**environment, "CC": compiler})


def tag(number: str, folder: Path) -> None:
    """The whole section is the tag's text: by default git would drop its headings. Raises image.CannotBuild."""
    _git("tag", "--annotate", "--cleanup=whitespace", f"v{number}", "--file", str(folder / NOTES))


def publish(number: str, registry: str, folder: Path) -> list[list[str]]:
    """Returns the commands that publish, in their order: the tag comes last, for it means that all is there."""
    engine = image.find_engine()
    images = [f"topogpu:{number}", image.simulated(f"topogpu:{number}")]
    return [
        *(command for name in images for command in engine.published(name, f"{registry}/{name}")),
        [str(helm.find()), "push", str(folder / f"topogpu-{number}.tgz"), f"oci://{registry}/charts"],
        ["git", "-C", str(ROOT), "push", "origin", f"v{number}"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.splitlines()[0])
    parser.add_argument("number", metavar="VERSION")
    parser.add_argument("--base", choices=["registry", "debian"], default="registry", help="As for make image.")
    parser.add_argument("--publish", metavar="REGISTRY", default="", help="Push there, and the tag. Empty: build only.")
    parser.add_argument("--url", default="", help="Where users will download the kubectl plugin, for krew's manifest.")
    given = parser.parse_args()
    if given.url and not given.url.startswith("https://"):
        parser.error("--url begins with https://")
    source = tree()
    found = [*problems(given.number, source)]
    found = found or [*missing(given.base, tags=given.number not in source.tags)]
    if found:
        raise CannotRelease("\n".join(found))
    image.run(["make", "-C", str(ROOT), "--no-print-directory", "check", "check-manifests"], shown=True)
    folder = ROOT / "build" / "release" / given.number
    build(given.number, given.base, folder, given.url.rstrip("/"))
    if given.number not in source.tags:
        tag(given.number, folder)
    print((folder / SUMS).read_text(), end="")
    print(f"{folder.relative_to(ROOT)} holds the release, and this clone has its tag v{given.number}.")
    for words in publish(given.number, given.publish or "REGISTRY", folder):
        if given.publish:
            image.run(words, shown=True)
        else:
            print(f"not run: {' '.join(words)}")


def _git(*words: str) -> str:
    return image.run(["git", "-C", str(ROOT), *words])


def _tagged(*which: str) -> list[str]:
    names = [line[1:] for line in _git("tag", "--list", *which, "v*").split()]
    return [name for name in names if versions.NUMBER.fullmatch(name)]


if __name__ == "__main__":
    try:
        main()
    except (CannotRelease, image.CannotBuild, helm.NoHelm, helm.HelmBuildFailed, plugin.BuildError) as problem:
        raise SystemExit(str(problem)) from None
