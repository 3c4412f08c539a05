"""The files that a container gets of a driver below a folder of the host: only mounts, no hook.

The list is that of NVIDIA's container toolkit 1.20.1 (`pkg/nvcdi/driver-nvml.go`, `internal/discover/graphics.go`,
`internal/discover/ipc.go`) without X.Org's modules and MPS' folder. The toolkit's hooks make links and run ldconfig in
the container, and need a program on the host. Here every name of a library is a mount of its own, in each of the two
folders in which glibc looks without a cache.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath

from deviceplugin.container.edits import Mount

LIBRARY_FOLDERS = ("/usr/lib64", "/usr/lib/{triple}", "/usr/lib/{triple}/nvidia/current", "/lib64", "/lib/{triple}")
"""The folders in which a driver may have them; `{triple}` is Debian's name of the processor and its ABI."""
_SEARCHED = ("/usr/lib64", "/usr/lib/{triple}")
"""The folders in which glibc's loader looks by default, in images like Red Hat's or SUSE's and like Debian's."""
CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
VDPAU = "vdpau"
"""A folder of libraries among libraries."""
FIRMWARE = "/lib/firmware/nvidia"
"""Holds a folder for each driver version, and that the files of the GPUs' own processor."""
_FIRMWARE_FILE = re.compile(r"(gsp|ucodes).*\.bin")
_OTHER_VERSIONS = re.compile(r"libnvidia-egl-(gbm|wayland|wayland2|xcb|xlib)\.so\.\d+\..+|libnvidia-nvvm70\.so\.\d.*")
"""Libraries of a driver that do not carry its version."""
_MORE_NAMES = {
    "libcuda.so": "libcuda",
    "libGLX_indirect.so.0": "libGLX_nvidia",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow",
    "libnvidia-vulkan-producer.so": "libnvidia-vulkan-producer",
    "gbm/nvidia-drm_gbm.so": "libnvidia-allocator",
}
"""Programs look for these, and not every driver's folder has them."""
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SETTINGS_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
_SHARED = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
)
_VULKAN = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_MOST_LINKS = 40
"""Linux' own limit for one path."""
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")


class NoDriver(Exception):
    """A clause: what is missing and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverListing:
    """The files below a driver's root. All paths are as if that root were /."""

    libraries: Mapping[str, Mapping[str, str]]
    """Maps each folder with libraries to its entries: where a link leads, or empty for a file. The first folder wins.

    """
    files: Mapping[str, str]
    """Maps each other path that was looked for to where it really lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    version: str
    """The driver's version in the names of its libraries, such as 550.54.15."""
    mounts: tuple[Mount, ...]


def wanted_files() -> tuple[str, ...]:
    """Returns each path outside of the folders for libraries and firmware at which a driver may have something."""
    return tuple(dict.fromkeys(chain.from_iterable(places for places, _ in _wanted())))


def library(listing: DriverListing, name: str) -> str:
    """Returns the file behind a library's name. Raises NoDriver."""
    for folder, names in listing.libraries.items():
        if file := _file(names, name):
            return f"{folder}/{file}"
    raise NoDriver(f"{name} is in none of its library folders")


def driver_files(listing: DriverListing, root: str, triple: str) -> DriverFiles:
    """Returns the driver's files. `root` is the host's folder above all that is listed. Raises NoDriver without CUDA's
    library.
    """
    version = PurePosixPath(library(listing, CUDA)).name.removeprefix("libcuda.so.")
    if not version[:1].isdigit() or "." not in version:
        raise NoDriver(f"{CUDA} leads to {library(listing, CUDA)}, whose name has no version")
    libraries = dict(_libraries(listing, version))
    found = {f"{folder.format(triple=triple)}/{name}": file for folder in _SEARCHED for name, file in libraries.items()}
    found |= {
        place: next(listing.files[path] for path in paths if path in listing.files)
        for paths, place in _wanted()
        if any(path in listing.files for path in paths)
    }
    found |= {path: file for path, file in listing.files.items() if _is_firmware(path, version)}
    above = "" if root == "/" else root
    mounts = (Mount(container_path=place, host_path=above + found[place], read_only=True) for place in sorted(found))
    return DriverFiles(version=version, mounts=tuple(mounts))


def _libraries(listing: DriverListing, version: str) -> Iterator[tuple[str, str]]:
    """Yields each name below a library folder, and the file behind it; the folders that take precedence come last."""
    for folder, names in reversed(tuple(listing.libraries.items())):
        below = f"{VDPAU}/" if PurePosixPath(folder).name == VDPAU else ""
        files = {name: file for name in names if _is_drivers(file := _file(names, name), version)}
        yield from ((below + name, f"{folder}/{file}") for name, file in files.items())
        by_stem = {file.partition(".so")[0]: f"{folder}/{file}" for file in files.values()}
        yield from (
            (name, by_stem[stem]) for name, stem in _MORE_NAMES.items() if stem in by_stem and name not in files
        )


def _is_drivers(file: str, version: str) -> bool:
    return file.endswith(f".so.{version}") or _OTHER_VERSIONS.fullmatch(file) is not None


def _is_firmware(path: str, version: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == f"{FIRMWARE}/{version}" and _FIRMWARE_FILE.fullmatch(name) is not None


def _file(names: Mapping[str, str], name: str) -> str:
    """Returns the name that the links lead to; empty where none is, or where they lead out of the folder."""
    for _ in range(_MOST_LINKS):
        target = names.get(name)
        if not target:
            return "" if target is None else name
        name = target.removeprefix("./")
    return ""


def _wanted() -> Iterator[tuple[Sequence[str], str]]:
    """Yields the places where a file may lie, and its place in the container."""
    for name in _PROGRAMS:
        yield [f"{folder}/{name}" for folder in _PROGRAM_FOLDERS], f"/usr/bin/{name}"
    for name in _SHARED:
        yield [f"{folder}/{name}" for folder in _SETTINGS_FOLDERS], f"/usr/share/{name}"
    yield [f"{folder}/OpenCL/vendors/nvidia.icd" for folder in _SETTINGS_FOLDERS], "/etc/OpenCL/vendors/nvidia.icd"
    for name in _VULKAN:
        # GKE's driver has them right below its root.
        yield [f"{folder}/{name}" for folder in (*_SETTINGS_FOLDERS, "")], f"/etc/{name}"
    for name in _SOCKETS:
        yield [f"/run/{name}", f"/var/run/{name}"], f"/run/{name}"
