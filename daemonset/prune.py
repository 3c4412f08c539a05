"""Takes out of the image's environment what nothing of ours imports, and proves that all of ours still imports.

`python prune.py SITE_PACKAGES`, run by that environment's Python while the image is built. Every module of ours is
imported once before and once after. In between distributions go without a loaded file. Of the package
`kubernetes`, 117 MiB, we use the reader of kubeconfigs: all files of it go that were not loaded, except those beside
loaded ones that are read by need. So do the tests of all packages.
"""

import compileall
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Set
from importlib.metadata import Distribution, distributions
from pathlib import Path

OURS = ("program", "proto", "deviceplugin", "scheduler_ext")
BY_NEED = ("pynvml", "cryptography.x509")
"""Modules that ours import within functions."""
PRUNED = "kubernetes"
WHOLE = ("kubernetes/aio/config",)
"""Its modules import each other when a kubeconfig requests it."""

IMPORT_ALL = f"""
import importlib, pkgutil, sys
for package in {OURS}:
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
for name in {BY_NEED}:
    importlib.import_module(name)
for module in list(sys.modules.values()):
    if getattr(module, "__spec__", None) and module.__spec__.has_location:
        print(module.__spec__.origin)
"""
"""A program: it imports every module of ours, and prints the files that were loaded."""


def loaded() -> set[Path]:
    """Returns the files that our modules load, all of them. Raises CalledProcessError."""
    done = subprocess.run([sys.executable, "-B", "-c", IMPORT_ALL], check=True, stdout=subprocess.PIPE, text=True)
    return {Path(line) for line in done.stdout.splitlines()}


def unused(site: Path, kept: Set[Path]) -> list[Distribution]:
    """Returns the distributions without a file in `kept`."""
    return [
        each
        for each in distributions(path=[str(site)])
        if kept.isdisjoint(Path(str(each.locate_file(file))) for file in each.files or ())
    ]


def prune(site: Path) -> None:
    kept = loaded()
    for each in unused(site, kept):
        for file in each.files or ():
            Path(str(each.locate_file(file))).unlink(missing_ok=True)
    for path in (site / PRUNED).rglob("*"):
        if path.is_file() and path not in kept and not path.relative_to(site).as_posix().startswith(WHOLE):
            path.unlink()
    for folder in (*sorted(site.rglob("__pycache__")), *sorted(site.glob("*/tests"))):
        shutil.rmtree(folder)
    for folder in sorted(site.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    loaded()
    # The content decides, not the time: the same files give the same image, and loading them checks nothing.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(site, quiet=1, invalidation_mode=mode, workers=1):
        raise SystemExit(f"{site}: not every module can be compiled.")


if __name__ == "__main__":
    prune(Path(sys.argv[1]))
