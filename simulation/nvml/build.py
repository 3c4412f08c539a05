"""Builds the fake libnvidia-ml.so.1 once per version of its sources; a wheel of a release holds it built.

It takes the system's C compiler, else the one in the PyPI package ziglang.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.c")))
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
SHIPPED = Path(__file__).parent / "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1")
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_SECONDS = 200
"""ziglang builds parts of the C library first; a busy machine takes its time."""
_CANNOT = "cannot build the fake NVML library"


class NoCompiler(Exception):
    """The library cannot be built here, in one sentence."""


class BuildFailed(NoCompiler):
    """A compiler is there, and it or the disk refuses."""


def build_library(cache_dir: Path | None = None) -> Path:
    """Returns path of the built library: of this installation, or from a cache when these sources were built before.

    Looks in `cache_dir` or the user's cache, and where that cannot be written in the temporary folder. Any number of
    processes may build at once. Raises NoCompiler, as its sub-class BuildFailed where there is a compiler.
    """
    if SHIPPED.is_file():
        return SHIPPED
    name = f"nvml-{_key()}"
    refusal = "no folder is given"
    for is_second, cache in enumerate(_caches(cache_dir)):
        library = cache / name / "libnvidia-ml.so.1"
        try:
            if library.is_file():
                return library
            unfinished = _unfinished(library)
        except OSError as error:
            refusal = str(error)
            continue
        _compile(unfinished, library, {"ZIG_GLOBAL_CACHE_DIR": str(cache / "zig")} if is_second else {})
        return library
    raise BuildFailed(f"{_CANNOT}: no cache folder can be written: {refusal}")


def _key() -> str:
    """Names what the result depends on: every source, the flags and the processor."""
    content = hashlib.sha256("\0".join((*FLAGS, os.uname().machine)).encode())
    for path in (*SOURCES, *HEADERS):
        content.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return content.hexdigest()[:16]


def compiler() -> list[str]:
    """Returns the command's words; $CC may carry options."""
    chosen = shlex.split(os.environ.get("CC", ""))
    for name in chosen[:1] or _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return [path, *chosen[1:]]
    if not chosen and find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    missing = f"$CC names {chosen[0]!r}, which is not found" if chosen else "no C compiler (cc, gcc or clang) is found"
    raise NoCompiler(f"{_CANNOT}: {missing}; install gcc, or the Python package ziglang")


def _unfinished(library: Path) -> Path:
    """Returns a new file of our own beside the library. Raises OSError where none can be written."""
    library.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=library.parent, suffix=".so")
    os.close(descriptor)
    return Path(name)


def _compile(unfinished: Path, library: Path, environment: dict[str, str]) -> None:
    """Each of several builders fills its own file, and the rename is atomic."""
    try:
        found = compiler()
        command = [*found, *FLAGS, "-o", str(unfinished), *map(str, SOURCES), "-lpthread"]
        subprocess.run(  # noqa: S603 - our own source, no shell
            command,
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_SECONDS,
            env={**os.environ, **environment},
        )
        unfinished.chmod(0o755)
        unfinished.replace(library)
    except subprocess.CalledProcessError as error:
        raise BuildFailed(f"{_CANNOT}: {found[0]} answered: {_first_error(error)}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{_CANNOT}: {found[0]} did not finish in {_BUILD_SECONDS} s") from error
    except OSError as error:
        raise BuildFailed(f"{_CANNOT} with {found[0]}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _first_error(failed: subprocess.CalledProcessError) -> str:
    """Compilers put warnings and `In function` before the line that matters."""
    lines = [line.strip() for line in str(failed.stderr).splitlines() if line.strip()]
    errors = (line for line in lines if "error" in line.lower())
    return next(errors, lines[0] if lines else f"nothing but exit status {failed.returncode}")


def _caches(cache_dir: Path | None) -> Iterator[Path]:
    """Yields the folder requested, or else the user's cache; then a temporary one. Raises BuildFailed."""
    if cache_dir is not None:
        yield cache_dir
    else:
        home = os.environ.get("XDG_CACHE_HOME")
        with contextlib.suppress(RuntimeError):  # no home at all
            yield (Path(home) if home else Path.home() / ".cache") / "topogpu"
    yield _temporary_cache()


def _temporary_cache() -> Path:
    """Returns the same folder each time, or a new one where somebody else holds its name."""
    try:
        own = Path(tempfile.gettempdir()) / f"topogpu-{os.getuid()}"
        return own if _is_ours(own) else Path(tempfile.mkdtemp(prefix="topogpu-"))
    except OSError as error:
        raise BuildFailed(f"{_CANNOT}: no cache folder can be written: {error}") from error


def _is_ours(folder: Path) -> bool:
    """Returns whether only this user can write there; anybody may have made a folder of this name first, or a link."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
