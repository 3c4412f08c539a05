"""The images of a whole cluster, as OCI archives: today's, and the one of the release before.

`build` makes with `daemonset.image` what is missing, minutes each, and keeps it by content.
"""

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from daemonset.image import OUT, ROOT
from tests.cluster.binaries import BuildFailed, cache

_PACKAGES = ("program", "proto", "deviceplugin", "scheduler_ext", "simulation")
_SUFFIXES = (".py", ".c", ".h", ".yaml", ".lock", "Dockerfile")
PRODUCT, SIMULATED = "topogpu", "topogpu-simulated"
_KEPT = 2
"""Sources whose images are kept beside today's and those of the release before."""
PREVIOUS = "e76ba0b"
"""While nothing is tagged, the first commit whose image is built like today's."""


class NoImage(Exception):
    """One sentence."""


def current(name: str = PRODUCT) -> Path:
    """The archive, in the folder $DEPLOY_IMAGES if that is set. Raises NoImage."""
    return _found(_content(ROOT), name)


def missing() -> list[Path]:
    """Archives that `build` would make."""
    return [] if os.environ.get("DEPLOY_IMAGES") else [path for path in _wanted() if not path.exists()]


def _wanted() -> list[Path]:
    paths = [_path(_content(ROOT), name) for name in (PRODUCT, SIMULATED)]
    with suppress(NoImage):
        paths.append(_path(previous_commit(), PRODUCT))
    return paths


def previous() -> Path:
    """The archive of the product; in $DEPLOY_IMAGES it is previous.tar. Raises NoImage."""
    return _found(previous_commit(), "previous" if os.environ.get("DEPLOY_IMAGES") else PRODUCT)


def previous_commit() -> str:
    """Of the last tag, if there is one. Raises NoImage."""
    for named in ("describe --tags --abbrev=0 HEAD^", f"rev-parse --verify {PREVIOUS}^{{commit}}"):
        name = _git(named)
        if name:
            return _git(f"rev-parse {name}^{{commit}}")
    raise NoImage(f"this clone has neither a tag nor the commit {PREVIOUS}")


def build() -> None:
    """Raises NoImage, BuildFailed."""
    if not missing():
        return
    build_from(ROOT, _content(ROOT), PRODUCT, SIMULATED)
    try:
        commit = previous_commit()
    except NoImage as reason:
        print(f"left out: the image of the release before, for {reason}", file=sys.stderr)
        return
    if not _path(commit, PRODUCT).exists():
        OUT.mkdir(parents=True, exist_ok=True)
        # On the file system of the base, which is linked.
        with tempfile.TemporaryDirectory(dir=OUT) as temporary:
            tree = Path(temporary, "before")
            subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", str(tree), commit], check=True)
            try:
                _share_base(tree)
                build_from(tree, commit, PRODUCT)
            finally:
                subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)
    forget_oldest()


def forget_oldest() -> None:
    """Each change of the sources makes another 200 MB."""
    kept = {path.parent for path in _wanted()}
    others = [folder for folder in cache("image").iterdir() if folder not in kept]
    for folder in sorted(others, key=lambda folder: folder.stat().st_mtime, reverse=True)[_KEPT:]:
        shutil.rmtree(folder)


def chart_before(folder: Path) -> Path:
    """The chart of the release before, written below the folder. Raises NoImage."""
    done = subprocess.run(
        f"git -C {ROOT} archive {previous_commit()} daemonset/chart | tar -x -C {folder}", shell=True, check=False
    )
    if done.returncode:
        raise NoImage("git cannot read the chart of the release before")
    return folder / "daemonset" / "chart" / "topogpu"


def _share_base(tree: Path) -> None:
    """An older release makes the base of Debian's packages with its own commands; the packages are the same."""
    there = tree / OUT.relative_to(ROOT)
    there.mkdir(parents=True)
    for base in OUT.glob("debian-*.tar"):
        os.link(base, there / base.name)


def build_from(tree: Path, key: str, *names: str) -> None:
    """Raises NoImage, BuildFailed."""
    if all(_path(key, name).exists() for name in names):
        return
    if os.geteuid() or shutil.which("buildah") is None or shutil.which("mmdebstrap") is None:
        raise NoImage("buildah and mmdebstrap build the image as root (Debian: apt install buildah mmdebstrap)")
    command = [sys.executable, "-m", "daemonset.image", "--base", "debian"]
    command += ["--simulated"] if SIMULATED in names else []
    if subprocess.run(command, cwd=tree, check=False).returncode:
        raise BuildFailed(f"the image of {key} could not be built: see above")
    version = runpy.run_path(str(tree / "proto" / "__init__.py"))["__version__"]
    for name in names:
        _path(key, name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tree / OUT.relative_to(ROOT) / f"{name}-{version}.tar", _path(key, name))


def _found(key: str, name: str) -> Path:
    named = os.environ.get("DEPLOY_IMAGES")
    path = Path(named, f"{name}.tar") if named else _path(key, name)
    if path.exists():
        return path
    raise NoImage(f"there is no {path}: `make test-deploy` builds it as root, with buildah and mmdebstrap")


def _path(key: str, name: str) -> Path:
    return cache("image") / key[:16] / f"{name}.tar"


def _content(tree: Path) -> str:
    """Names what the images are made of."""
    files = [path for package in _PACKAGES for path in (tree / package).rglob("*") if path.name.endswith(_SUFFIXES)]
    files += [*(tree / "daemonset").glob("*.lock"), *(tree / "daemonset").glob("*Dockerfile")]
    files += [tree / "pyproject.toml", *(tree / "daemonset" / name for name in ("image.py", "prune.py"))]
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(f"\0{file.relative_to(tree)}\0".encode() + file.read_bytes())
    return found.hexdigest()


def _git(words: str) -> str:
    """Its answer, empty where it has none."""
    done = subprocess.run(["git", "-C", str(ROOT), *words.split()], capture_output=True, text=True, check=False)
    return done.stdout.strip() if not done.returncode else ""
