"""HAMi-core's library, built from the checkout that $HAMI_CORE_SOURCE names, and the simulated CUDA driver under it.

`python -m tests.hami_core.programs` builds them within seconds. Nothing of HAMi-core is part of this repository.
CUDA's and NVML's headers come from NVIDIA's packages on PyPI.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.binaries import BuildFailed, NoBinaries, cache, printed

VARIABLE = "HAMI_CORE_SOURCE"
OURS = Path(__file__).parent / "driver"
_HEADERS = ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nvml-dev-cu12==12.9.79")
_CONFIGURATION = "".join(
    f"#define {name}\n"
    for name in ("MULTIPROCESS_LIMIT_ENABLE", "HOOK_MEMINFO_ENABLE", "HOOK_NVML_ENABLE", "DLSYM_HOOK_ENABLE")
)
"""What HAMi-core's own CMakeLists.txt switches on."""
_DRIVER_FLAGS = ("-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic")
"""-Bsymbolic: a call inside NVIDIA's driver is never the preloaded library's."""


@dataclass(frozen=True, slots=True)
class Programs:
    folder: Path

    @property
    def library(self) -> Path:
        """HAMi-core."""
        return self.folder / "libvgpu.so"

    @property
    def linked_library(self) -> Path:
        """HAMi-core that needs libcuda.so.1, as the compiler of HAMi's newer images links it."""
        return self.folder / "libvgpu-linked.so"

    @property
    def driver(self) -> Path:
        """The folder of libcuda.so.1 and libnvidia-ml.so.1."""
        return self.folder / "driver"

    @property
    def held(self) -> Path:
        """The program that prints what each process has of each GPU."""
        return self.folder / "held"

    def tenant(self, name: str) -> Path:
        """A container's program: `tenant`, or `tenant-linked`, for which the loader finds CUDA."""
        return self.folder / name

    @property
    def is_complete(self) -> bool:
        return (self.folder / "complete").exists()


def find() -> Programs:
    """Raises NoBinaries."""
    programs = _named()
    if not programs.is_complete:
        raise NoBinaries(f"HAMi-core is not built: run `make test-hami-core {VARIABLE}={_source()}`")
    return programs


def build() -> Programs:
    """Builds what is missing. Raises NoBinaries, BuildFailed."""
    programs, source = _named(), _source()
    if programs.is_complete:
        return programs
    if shutil.which("cc") is None:
        raise NoBinaries("there is no C compiler")
    print(f"building HAMi-core of {source} into {programs.folder} ...", file=sys.stderr, flush=True)
    programs.driver.mkdir(parents=True, exist_ok=True)
    _driver(programs)
    _hami_core(programs, source, _headers(programs.folder))
    (programs.folder / "complete").touch()
    return programs


def _named() -> Programs:
    """Raises NoBinaries."""
    content = hashlib.sha256()
    for path in (*_c_files(_source() / "src"), *sorted(OURS.iterdir()), Path(__file__)):
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    return Programs(cache("hami-core") / content.hexdigest()[:16])


def _source() -> Path:
    """Raises NoBinaries."""
    named = os.environ.get(VARIABLE, "")
    source = Path(named)
    if not named or not (source / "src" / "libvgpu.c").is_file():
        raise NoBinaries(f"{VARIABLE}={named} is no checkout of HAMi-core: it has no src/libvgpu.c")
    return source.resolve()


def _c_files(folder: Path) -> list[Path]:
    """The sources of the library; `shrreg_tool.c` is a program."""
    found = [path for ending in ("c", "h") for path in folder.rglob(f"*.{ending}")]
    return sorted(path for path in found if path.name != "shrreg_tool.c")


def _driver(programs: Programs) -> None:
    gpus, folder = OURS / "gpus.c", programs.driver
    cuda, nvml = folder / "libcuda.so.1", folder / "libnvidia-ml.so.1"
    exported = f"-Wl,-soname,libcuda.so.1,--version-script={OURS / 'libcuda.map'}"
    _compile(cuda, (OURS / "libcuda.c", gpus), (*_DRIVER_FLAGS, exported), ("-lpthread", "-ldl"))
    _compile(nvml, (OURS / "libnvidia-ml.c", gpus), (*_DRIVER_FLAGS, f"-Wl,-soname,{nvml.name}"), ("-lpthread",))
    for library in (cuda, nvml):
        plain = library.with_suffix("")
        plain.unlink(missing_ok=True)
        plain.symlink_to(library.name)
    _compile(programs.tenant("tenant"), (OURS / "tenant.c",), ("-O1",), ("-ldl",))
    linked = ("-O1", "-DLINKED", f"-L{folder}")
    _compile(programs.tenant("tenant-linked"), (OURS / "tenant.c",), linked, ("-lcuda", "-ldl"))
    _compile(programs.held, (OURS / "held.c", gpus), ("-O1",), ("-lpthread",))


def _headers(folder: Path) -> tuple[Path, ...]:
    """The folders of cuda.h and nvml.h. Raises BuildFailed."""
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run([*command, "--dest", str(wheels), *_HEADERS])
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if "/include/" in name]
            archive.extractall(folder / "headers", names)
    return tuple(path.parent for name in ("cuda.h", "nvml.h") for path in (folder / "headers").rglob(name))


def _hami_core(programs: Programs, source: Path, headers: Sequence[Path]) -> None:
    """Compiles the library with the flags of its own build, but without the tests, which need nvcc."""
    (programs.folder / "static_config.h").write_text(_CONFIGURATION)
    includes = [f"-I{folder}" for folder in (*headers, source / "src", programs.folder)]
    sources = [path for path in _c_files(source / "src") if path.suffix == ".c"]
    flags = ("-shared", "-fPIC", "-g", "-w", "-D_GNU_SOURCE", *includes, f"-L{programs.driver}")
    libraries = ("-lcuda", "-lnvidia-ml", "-lpthread", "-ldl", "-lm")
    _compile(programs.library, sources, ("-Wl,--as-needed", *flags), libraries)
    _compile(programs.linked_library, sources, ("-Wl,--no-as-needed", *flags), libraries)


def _compile(target: Path, sources: Sequence[Path], flags: Sequence[str], libraries: Sequence[str]) -> None:
    _run(["cc", *flags, "-o", str(target), *map(str, sources), *libraries])


def _run(command: Sequence[str]) -> None:
    """Raises BuildFailed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BuildFailed(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    printed(lambda: build().folder)
