"""Builds the fake libnvidia-ml.so.1 with the system's C compiler, once per version of its source."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1")
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_SECONDS = 60


class NoCompiler(Exception):
    """The library cannot be built here, in one sentence."""


def build_library(cache_dir: Path | None = None) -> Path:
    """Path of the built library, from the cache when this source was built before. Raises NoCompiler."""
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source + "\0".join((*FLAGS, os.uname().machine)).encode()).hexdigest()[:16]
    folder = _writable(cache_dir) / f"nvml-{key}"
    library = folder / "libnvidia-ml.so.1"
    if library.is_file():
        return library
    compiler = _compiler()
    folder.mkdir(parents=True, exist_ok=True)
    _compile(compiler, library)
    return library


def _compiler() -> str:
    chosen = os.environ.get("CC")
    for name in (chosen,) if chosen else _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    missing = f"$CC names {chosen!r}, which is not found" if chosen else "no C compiler (cc, gcc or clang) is found"
    raise NoCompiler(f"cannot build the fake NVML library: {missing}; install gcc")


def _compile(compiler: str, library: Path) -> None:
    """Two processes may build at once: each into its own file, and the rename is atomic."""
    descriptor, name = tempfile.mkstemp(dir=library.parent, suffix=".so")
    os.close(descriptor)
    command = [compiler, *FLAGS, "-o", name, str(SOURCE), "-lpthread"]
    try:
        subprocess.run(  # noqa: S603 - our own source, no shell
            command, check=True, capture_output=True, text=True, timeout=_BUILD_SECONDS
        )
        Path(name).chmod(0o755)
        Path(name).replace(library)
    except subprocess.CalledProcessError as e:
        said = (e.stderr.strip().splitlines() or ["no message"])[0]
        raise NoCompiler(f"cannot build the fake NVML library: {compiler} answered: {said}") from e
    except (OSError, subprocess.TimeoutExpired) as e:
        raise NoCompiler(f"cannot build the fake NVML library with {compiler}: {e}") from e
    finally:
        Path(name).unlink(missing_ok=True)


def _writable(cache_dir: Path | None) -> Path:
    """The folder asked for, else the user's cache, else a temporary folder only this user can write."""
    if cache_dir is not None:
        cache_dir.mkdir(parents=True, exist_ok=True)
        return cache_dir
    try:
        home = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(home) if home else Path.home() / ".cache") / "topogpu"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass  # no home, or a read-only one
    return Path(tempfile.mkdtemp(prefix="topogpu-"))
