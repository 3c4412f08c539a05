"""Builds `kubectl topogpu` as one file, and the manifest for krew: `python -m daemonset.plugin`.

The file is a zip with a Python program in front. On its first run it unpacks itself below the user's cache folder,
because compiled modules cannot be imported from a zip.

Without `--release` it is built of what is installed here, for this Python and this machine. With it, pinned wheels are
downloaded: one file for each platform, for every Python that is supported.
"""

import argparse
import gzip
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

import yaml

from proto import __version__

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "daemonset" / "requirements.lock"
STARTER = ROOT / "daemonset" / "plugin_start.py"
PACKAGES = ("kubectl_topogpu", "scheduler_ext", "program", "proto")
NEEDS = ("click", "msgspec", "pyyaml", "rich")
"""Distributions that the plugin imports. Of rich it does not use what needs rich's own requirements."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    ("linux", "amd64"): ("manylinux_2_28_x86_64", "manylinux2014_x86_64"),
    ("linux", "arm64"): ("manylinux_2_28_aarch64", "manylinux2014_aarch64"),
    ("darwin", "amd64"): ("macosx_10_9_x86_64", "macosx_10_13_x86_64", "macosx_11_0_x86_64"),
    ("darwin", "arm64"): ("macosx_11_0_arm64",),
}
"""Platforms as krew names them, and tags of their wheels."""
_LEFT_OUT = re.compile(r"(^|/)(_yaml|tests?|__pycache__|bin)/|_yaml\..*\.so$|\.(pyi|proto|pyc)$|_pb2(_grpc)?\.py$")
"""The YAML writer needs no compiled part."""
_STARTS_IN = "site/"
_EPOCH = (1980, 1, 1, 0, 0, 0)

Files = Mapping[str, bytes]
"""Files by path below the folder from which Python imports."""


class BuildError(Exception):
    """The message names what failed."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m daemonset.plugin", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "plugin", help="folder of what is built")
    parser.add_argument("--release", action="store_true", help="build for every platform, with krew's manifest")
    parser.add_argument("--url", default="", help="for --release: where users download the archives")
    given = parser.parse_args(arguments)
    if given.release != bool(given.url.startswith("https://")):
        parser.error("--release needs --url https://…, and --url needs --release")
    given.output.mkdir(parents=True, exist_ok=True)
    try:
        if given.release:
            print(*release(given.output, given.url.rstrip("/")), sep="\n")
        else:
            (given.output / "kubectl-topogpu").write_bytes(program({**installed(), **ours()}))
            (given.output / "kubectl-topogpu").chmod(0o755)
            print(given.output / "kubectl-topogpu")
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def release(output: Path, url: str) -> list[Path]:
    """Writes an archive for each platform, and with a URL `topogpu.yaml`. Raises BuildError."""
    sums: dict[tuple[str, str], str] = {}
    for platform, tags in PLATFORMS.items():
        archive = output / archive_name(platform)
        archive.write_bytes(packed({"kubectl-topogpu": program({**downloaded(tags), **ours()})}))
        sums[platform] = hashlib.sha256(archive.read_bytes()).hexdigest()
    written = [output / archive_name(platform) for platform in sums]
    if url:
        written.append(output / "topogpu.yaml")
        written[-1].write_text(yaml.safe_dump(manifest(sums, url), sort_keys=False, width=100))
    return written


def ours() -> Files:
    """Returns the project's packages that the plugin imports."""
    return {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not _LEFT_OUT.search(str(path.relative_to(ROOT)))
    }


def installed() -> Files:
    """Returns what is installed here of the distributions that the plugin needs."""
    found: dict[str, bytes] = {}
    for name in NEEDS:
        for file in importlib.metadata.distribution(name).files or ():
            if not (file.parts[0] == ".." or _LEFT_OUT.search(str(file))):
                found[str(file)] = Path(str(file.locate())).read_bytes()
    return found


def downloaded(tags: Iterable[str]) -> Files:
    """Returns pinned wheels for the platform with these tags and for every Python. Raises BuildError."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text(pinned(LOCK.read_text(), NEEDS))
        for python in PYTHONS:
            wheels = Path(folder) / python
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(pins)]
            command += ["--python-version", python, "--dest", str(wheels)]
            command += [word for tag in tags for word in ("--platform", tag)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError(f"pip has no wheels for {', '.join(tags)}, Python {python}: {done.stderr.strip()}")
            for wheel in sorted(wheels.glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    names = [name for name in archive.namelist() if not (name.endswith("/") or _LEFT_OUT.search(name))]
                    found |= {name: archive.read(name) for name in names}
    return found


def pinned(lock: str, names: Iterable[str]) -> str:
    """Returns the lines of a lock file for these distributions, with their hashes. Raises BuildError."""
    kept = []
    for name in names:
        found = re.search(rf"^{re.escape(name)}==\S+.*(?:\n    --hash=\S+.*)+", lock, re.MULTILINE)
        if found is None:
            raise BuildError(f"{LOCK.name} does not pin {name}")
        kept.append(found[0])
    return "\n".join(kept) + "\n"


def program(files: Files) -> bytes:
    """Returns the single file. The same files make the same bytes."""
    content = hashlib.sha256()
    for name, data in sorted(files.items()):
        content.update(f"{name}\0{len(data)}\0".encode() + data)
    starter = STARTER.read_text().replace('"DIGEST"', f'"{content.hexdigest()[:16]}"')
    made = BytesIO()
    made.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), starter)
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(_STARTS_IN + name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return made.getvalue()


def packed(files: Files) -> bytes:
    """Returns a .tar.gz of programs, with the licence. The same files make the same bytes."""
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data, mode in (
            *((name, data, 0o755) for name, data in files.items()),
            ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, BytesIO(data))
    return gzip.compress(made.getvalue(), mtime=0)


def archive_name(platform: tuple[str, str]) -> str:
    return f"kubectl-topogpu-{platform[0]}-{platform[1]}.tar.gz"


def manifest(sums: Mapping[tuple[str, str], str], url: str) -> dict[str, object]:
    """Returns the manifest for krew: `sums` are the SHA-256 of each platform's archive.

    Source: internal/index/validation and docs of kubernetes-sigs/krew.
    """
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "topogpu"},
        "spec": {
            "version": f"v{__version__}",
            "homepage": url.partition("/releases/")[0],
            "shortDescription": "Show who holds which GPU, and why pods wait",
            "description": (
                "Shows nodes, their shared NVIDIA GPUs and the pods that hold them, for TopoGPU and HAMi.\n"
                "It explains why a pod waits and what would help, counts how many more pods fit, and draws how GPUs\n"
                "are connected. It only reads.\n"
            ),
            "caveats": f"Needs Python {PYTHONS[0]} or newer in PATH as python3.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": os, "arch": arch}},
                    "uri": f"{url}/{archive_name((os, arch))}",
                    "sha256": digest,
                    "bin": "kubectl-topogpu",
                }
                for (os, arch), digest in sums.items()
            ],
        },
    }


if __name__ == "__main__":
    sys.exit(main())
