"""Builds the image and packs it as an OCI archive: `python -m daemonset.image`, which `make image` calls.

By buildah, podman or docker, whichever is there. From Python's official image; where no registry is reachable, from
Debian's packages (`--base debian`), by mmdebstrap as root. The same commit and base give the same image. For another
processor (`--arch arm64`) an emulator must be registered with the kernel, as Debian's qemu-user-static does.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from daemonset.image_archive import retar
from proto import __version__

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "daemonset" / "Dockerfile"
SIMULATED = ROOT / "daemonset" / "simulated.Dockerfile"
OUT = ROOT / "build" / "image"
SUITE = "bookworm"
"""The release of Debian on which the official Python image is built too."""
_BASES = {
    name: ("python3", "libstdc++6", "ca-certificates", *more)
    for name, more in (("run", ()), ("build", ("python3-venv",)), ("compile", ("gcc", "libc6-dev")))
}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The kernel's names of processors, by the names that images have for them."""
EMULATORS = Path("/proc/sys/fs/binfmt_misc")
_BASE_SECONDS = 24 * 3600
"""After this time a base is made again, with the packages that Debian has mended meanwhile."""
_BASE_EPOCH = 315532800
"""1980: the bytes of a base follow from its packages alone."""
_CERTIFICATES = "/etc/ssl/certs"


class CannotBuild(Exception):
    """One sentence: what is missing or failed, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit of the sources. `seconds` counts from 1970."""

    revision: str
    seconds: int

    @property
    def date(self) -> str:
        return datetime.fromtimestamp(self.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class ImageBuilder:
    program: str

    @property
    def words(self) -> list[str]:
        """The start of the command. buildah builds as root with plain folders, so that it works in a container without
        privileges.
        """
        return [self.program, "--storage-driver=vfs"] if self.program == "buildah" else [self.program]

    def load(self, archive: Path, name: str, arch: str) -> None:
        """Loads the file tree as an image. Raises CannotBuild."""
        if self.program != "buildah":
            run([*self.words, "import", *([f"--platform=linux/{arch}"] if arch else []), str(archive), name])
            return
        container = run([*self.words, "from", "scratch"]).strip()
        try:
            if arch:
                run([*self.words, "config", f"--arch={arch}", container])
            run([*self.words, "add", container, str(archive), "/"])
            run([*self.words, "commit", "--timestamp=0", container, name])
        finally:
            run([*self.words, "rm", container])

    def build(
        self,
        tag: str,
        arguments: Mapping[str, str],
        commit: Commit,
        dockerfile: Path = DOCKERFILE,
        *,
        arch: str,
        fresh: bool,
    ) -> None:
        """Builds the image; `fresh` does not reuse earlier steps. Raises CannotBuild."""
        words = [*self.words, "build", f"--file={dockerfile}", f"--tag={tag}", *(["--no-cache"] if fresh else [])]
        words += [f"--platform=linux/{arch}"] if arch else []
        own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
        if own.exists() and self.program != "docker":
            words += [f"--ignorefile={own}"]
        words += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        if self.program == "buildah":
            words += ["--isolation=chroot"]
        if self.program != "docker":
            # Certificates of this host, for a proxy may stand before the package index.
            words += [f"--timestamp={commit.seconds}", f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro"]
        run([*words, str(ROOT)], shown=True)

    def pack(self, tag: str, archive: Path) -> None:
        """Raises CannotBuild."""
        archive.unlink(missing_ok=True)
        match self.program:
            case "buildah":
                run([*self.words, "push", tag, f"oci-archive:{archive}:{tag}"])
            case "podman":
                run([*self.words, "save", "--format=oci-archive", f"--output={archive}", tag])
            case _:
                run([*self.words, "save", f"--output={archive}", tag])

    def published(self, tag: str, name: str) -> list[list[str]]:
        """Returns the commands that push an image to a registry, under a name of the registry's."""
        if self.program == "docker":
            return [["docker", "tag", tag, name], ["docker", "push", name]]
        return [[*self.words, "push", tag, f"docker://{name}"]]

    def start(self, tag: str, words: Sequence[str]) -> str:
        """Returns what the program prints in a container of the image. Raises CannotBuild."""
        if self.program != "buildah":
            return run([*self.words, "run", "--rm", "--read-only", f"--entrypoint={words[0]}", tag, *words[1:]])
        container = run([*self.words, "from", "--pull-never", tag]).strip()
        try:
            return run([*self.words, "run", "--isolation=chroot", container, "--", *words])
        finally:
            run([*self.words, "rm", container])


def find_engine() -> ImageBuilder:
    """Returns the first that answers. Raises CannotBuild."""
    for program in ("buildah", "podman", "docker"):
        if shutil.which(program) and not subprocess.run([program, "info"], capture_output=True, check=False).returncode:
            return ImageBuilder(program)
    raise CannotBuild("Neither buildah nor podman nor docker works here; install one (Debian: apt install buildah).")


def debian_base(engine: ImageBuilder, purpose: str, arch: str) -> str:
    """Returns the name of an image made of Debian's packages, of today or yesterday. Raises CannotBuild."""
    if shutil.which("mmdebstrap") is None:
        raise CannotBuild(
            "mmdebstrap makes the base image and is not here; install it (Debian: apt install mmdebstrap)."
        )
    which = f"{purpose}-{arch}" if arch else purpose
    archive = OUT / f"debian-{which}.tar"
    if not archive.exists() or time.time() - archive.stat().st_mtime > _BASE_SECONDS:
        packages = f"--include={','.join(_BASES[purpose])}"
        link = '--customize-hook=ln -s ../../bin/python3 "$1/usr/local/bin/python"'
        partial = archive.with_suffix(".partial.tar")
        words = ["mmdebstrap", "--quiet", "--mode=root", "--variant=essential", packages, link]
        words += [f"--architectures={arch}"] if arch else []
        run([*words, SUITE, str(partial)], {"SOURCE_DATE_EPOCH": str(_BASE_EPOCH)})
        partial.rename(archive)
    name = f"localhost/topogpu-base-{which}:{SUITE}"
    engine.load(archive, name, arch)
    return name


def can_run(arch: str) -> None:
    """Raises CannotBuild where neither this machine nor an emulator runs its programs. For buildah: podman and docker
    may have a machine of their own.
    """
    machine = MACHINES.get(arch, "")
    if machine and machine != platform.machine() and not (EMULATORS / f"qemu-{machine}").exists():
        raise CannotBuild(
            f"No emulator for {arch} is registered with this machine's kernel; install one (Debian: apt install "
            "qemu-user-static binfmt-support), or build on such a machine."
        )


def commit() -> Commit:
    """Raises CannotBuild."""
    revision = run(["git", "-C", str(ROOT), "rev-parse", "HEAD"]).strip()
    return Commit(revision=revision, seconds=int(run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"])))


def run(words: Sequence[str], environment: Mapping[str, str] | None = None, *, shown: bool = False) -> str:
    """Returns what it prints, which goes to people instead where it is `shown`. Raises CannotBuild."""
    out = sys.stderr if shown else subprocess.PIPE
    try:
        done = subprocess.run(
            words,
            stdout=out,
            stderr=sys.stderr if shown else subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, **(environment or {})},
        )
    except FileNotFoundError:
        raise CannotBuild(f"There is no program {words[0]} here; install it.") from None
    if done.returncode:
        said = (done.stderr or "").strip()[-2000:]
        raise CannotBuild(f"{' '.join(words[:3])} failed with status {done.returncode}. {said}")
    return done.stdout or ""


def build(base: str, tag: str, arch: str = "", *, fresh: bool = False) -> Path:
    """Returns the path of the image's OCI archive; docker writes its own format. Raises CannotBuild."""
    OUT.mkdir(parents=True, exist_ok=True)
    engine, built = find_engine(), commit()
    if engine.program == "buildah":
        can_run(arch)
    arguments = {"REVISION": built.revision, "BUILD_DATE": built.date, "SOURCE_DATE_EPOCH": str(built.seconds)}
    arguments["VERSION"] = __version__
    if base == "debian":
        arguments["PYTHON_IMAGE"] = debian_base(engine, "run", arch)
        arguments["BUILD_IMAGE"] = debian_base(engine, "build", arch)
    engine.build(tag, arguments, built, arch=arch, fresh=fresh)
    return pack(engine, tag)


def build_simulated(base: str, product: str, arch: str = "") -> Path:
    """Builds the image for nodes that simulate GPUs on the product's image of this name. Raises CannotBuild."""
    engine, built = find_engine(), commit()
    arguments = {"PRODUCT_IMAGE": product}
    if base == "debian":
        arguments["COMPILER_IMAGE"] = debian_base(engine, "compile", arch)
    tag = simulated(product)
    engine.build(tag, arguments, built, SIMULATED, arch=arch, fresh=True)
    return pack(engine, tag)


def simulated(product: str) -> str:
    """Returns the name of the image for simulated GPUs on the product's of this name."""
    name, _, number = product.rpartition(":")
    return f"{name}-simulated:{number}"


def pack(engine: ImageBuilder, tag: str) -> Path:
    """Raises CannotBuild."""
    archive = OUT / f"{tag.replace('/', '-').replace(':', '-')}.tar"
    engine.pack(tag, archive)
    retar(archive)
    return archive


def parser(program: str, description: str) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog=program, description=description)
    found.add_argument("--base", choices=["registry", "debian"], default="registry", help="Source of the base image.")
    found.add_argument("--arch", choices=["amd64", "arm64"], default="", help="The processor, if not this machine's.")
    found.add_argument("--tag", help="The image's name; topogpu:VERSION by default, and -ARCH behind it with --arch.")
    return found


def tag_of(given: argparse.Namespace) -> str:
    return given.tag or "-".join(filter(None, (f"topogpu:{__version__}", given.arch)))


def main() -> None:
    wanted = parser("make image", "Build the image as an OCI archive.")
    wanted.add_argument("--simulated", action="store_true", help="Also the image for nodes that simulate GPUs.")
    given = wanted.parse_args()
    tag = tag_of(given)
    archives = [build(given.base, tag, given.arch)]
    archives += [build_simulated(given.base, tag, given.arch)] if given.simulated else []
    for archive in archives:
        print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    try:
        main()
    except CannotBuild as problem:
        raise SystemExit(str(problem)) from None
