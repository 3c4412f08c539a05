"""Takes out of the image's environment what nothing of ours imports, and proves that all of ours still imports.

`python prune.py SITE_PACKAGES`, run by that environment's Python while the image is built. Of the package `kubernetes`,
117 MiB, we use the reader of kubeconfigs. Every module of ours is imported once before and once after; in between the
files of that package go that were not loaded, except those beside loaded ones that are read by need. So do the tests of
all packages.
"""

import compileall
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

OURS = ("program", "proto", "deviceplugin", "scheduler_ext")
PRUNED = "kubernetes"
WHOLE = ("kubernetes/aio/config",)
"""Its modules import each other when a kubeconfig requests it."""

IMPORT_ALL = f"""
import importlib, pkgutil, sys
for package in {OURS}:
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "{PRUNED}" and getattr(module, "__spec__", None) and module.__spec__.origin:
        print(module.__spec__.origin)
"""
"""A program: it imports every module of ours, and prints the files of the pruned package that were loaded."""


def loaded() -> set[Path]:
    """Returns files of the pruned package that our modules load, all of them. Raises CalledProcessError."""
    done = subprocess.run([sys.executable, "-B", "-c", IMPORT_ALL], check=True, stdout=subprocess.PIPE, text=True)
    return {Path(line) for line in done.stdout.splitlines()}


def prune(site: Path) -> None:
    kept = loaded()
    for path in sorted((site / PRUNED).rglob("*"), reverse=True):
        inside = path.relative_to(site).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in kept and not inside.startswith(WHOLE):
            path.unlink()
    for folder in (*sorted(site.rglob("__pycache__")), *sorted(site.glob("*/tests"))):
        shutil.rmtree(folder)
    loaded()
    # The content decides, not the time: the same files give the same image, and loading them checks nothing.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(site, quiet=1, invalidation_mode=mode, workers=1):
        raise SystemExit(f"{site}: not every module can be compiled.")


if __name__ == "__main__":
    prune(Path(sys.argv[1]))
