"""Reads the folder of the host below which the NVIDIA driver is installed (edge)."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from deviceplugin.container.driver_files import (
    FIRMWARE,
    LIBRARY_FOLDERS,
    NVML,
    VDPAU,
    DriverFiles,
    DriverListing,
    NoDriver,
    driver_files,
    library,
    wanted_files,
)
from deviceplugin.host_paths import seen
from deviceplugin.settings import HostSettings

_MOST_LINKS = 40
"""Linux' own limit for one path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRoot:
    """Every method blocks and reads again, because a driver's container may start, stop and bring another version."""

    host: str
    """/, /run/nvidia/driver of the GPU Operator's driver container, /home/kubernetes/bin/nvidia of GKE."""
    mounted: str = "/"
    """The folder at which this process has the host's folders."""
    triple: str = f"{os.uname().machine}-linux-gnu"
    """Debian's name of this processor and its ABI."""

    @property
    def seen(self) -> str:
        """Returns the path at which this process has the folder."""
        return seen(self.mounted, self.host)

    def nvml(self) -> str:
        """Returns NVML's path in this process. Raises NoDriver."""
        try:
            return self._seen(library(DriverListing(libraries=self._libraries(), files={}), NVML))
        except NoDriver as error:
            raise NoDriver(f"no NVIDIA driver below {self.host}: {error}") from error

    def files(self) -> DriverFiles:
        """Finds the driver's files for containers. Raises NoDriver."""
        found = {path: real for path in (*wanted_files(), *self._firmware()) if (real := self._inside(path))}
        try:
            return driver_files(DriverListing(libraries=self._libraries(), files=found), self.host, self.triple)
        except NoDriver as error:
            raise NoDriver(f"no NVIDIA driver below {self.host}: {error}") from error

    def missing(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Returns the paths of the host that would lie below this root and do not."""
        above = self.host.rstrip("/")
        below = (path for path in paths if path.startswith(f"{above}/"))
        return tuple(path for path in below if not os.path.exists(self._seen(path.removeprefix(above))))

    def _libraries(self) -> Mapping[str, Mapping[str, str]]:
        folders = [folder.format(triple=self.triple) for folder in LIBRARY_FOLDERS]
        real = (self._inside(each) for folder in folders for each in (folder, f"{folder}/{VDPAU}"))
        return {folder: dict(self._listed(folder)) for folder in dict.fromkeys(real) if folder}

    def _listed(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yields libraries and their links. A host's own folder has thousands of other names."""
        try:
            with os.scandir(self._seen(folder)) as entries:
                for entry in entries:
                    # A name that is no text has no place in a spec, as in `_inside`.
                    if ".so" in entry.name and entry.name.isprintable() and (entry.is_symlink() or entry.is_file()):
                        yield entry.name, os.readlink(entry.path) if entry.is_symlink() else ""
        except OSError:
            # It went meanwhile: what is listed is not whole, and then lacks what a container needs.
            return

    def _firmware(self) -> Iterator[str]:
        for version in self._names(FIRMWARE):
            yield from (f"{FIRMWARE}/{version}/{name}" for name in self._names(f"{FIRMWARE}/{version}"))

    def _names(self, folder: str) -> list[str]:
        real = self._inside(folder)
        try:
            return os.listdir(self._seen(real)) if real else []
        except OSError:
            return []

    def _inside(self, path: str) -> str:
        """Resolves a path, with links followed as if the root were /. Empty if nothing is there."""
        ahead, behind, links = path.split("/")[::-1], "", 0
        while ahead:
            name = ahead.pop()
            if name in ("", "."):
                continue
            if name == "..":
                behind = behind.rpartition("/")[0]
                continue
            try:
                target = os.readlink(self._seen(f"{behind}/{name}"))
            except OSError:
                behind = f"{behind}/{name}"
                continue
            links += 1
            if links > _MOST_LINKS:
                return ""
            behind = "" if target.startswith("/") else behind
            ahead += target.split("/")[::-1]
        # A name that is no text has no place in a spec.
        return behind if behind.isprintable() and os.path.exists(self._seen(behind)) else ""

    def _seen(self, path: str) -> str:
        return self.seen.rstrip("/") + path


def driver_root(host: HostSettings) -> DriverRoot | None:
    """Returns the driver's root; None where NVIDIA's container runtime adds the driver to this process."""
    return DriverRoot(host=host.driver_root, mounted=host.root) if host.driver_root else None
