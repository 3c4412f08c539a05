"""The one image of the tests: programs of ours, one of them with this host's libc, packed as an OCI archive.

Source of the form: image-layout.md, manifest.md and config.md of opencontainers/image-spec.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

NAME = "topogpu.test/workload:1"
PROGRAM = "/workload"
FINDER = "/finder"
"""It loads libraries, so it is linked dynamically."""
_FOLDER = Path(__file__).parent
_LOADED = re.compile(r"(/\S+) \(0x")
_TYPES = "application/vnd.oci.image"


class NoImage(Exception):
    """One sentence."""


def write_image(folder: Path) -> Path:
    """Compiled and packed. Raises NoImage."""
    programs = {PROGRAM: _built(folder, PROGRAM, "-static"), FINDER: _built(folder, FINDER, "-ldl")}
    loaded = subprocess.run(["ldd", programs[FINDER]], capture_output=True, text=True, check=True).stdout
    files = programs | {path: Path(path) for path in _LOADED.findall(loaded)}
    archive = folder / "workload.tar"
    contents = {path.lstrip("/"): source.read_bytes() for path, source in files.items()}
    archive.write_bytes(pack(contents, NAME, {"Entrypoint": [PROGRAM]}))
    return archive


def _built(folder: Path, program: str, *flags: str) -> Path:
    """Raises NoImage."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoImage("a C compiler makes the image's programs: install gcc")
    name = program.lstrip("/")
    command = [compiler, "-O1", "-o", str(folder / name), str(_FOLDER / f"{name}.c"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoImage(f"{name} of the image cannot be linked (Debian: libc6-dev): {done.stderr.strip()}")
    return folder / name


def pack(files: dict[str, bytes], name: str, settings: dict[str, object]) -> bytes:
    """An OCI archive of the image: files by path, the first one a program, and its `config`."""
    layer = _tar(files)
    config = _json(
        {
            "architecture": _architecture(next(iter(files.values()))),
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPES}.manifest.v1+json",
            "config": _described(config, "config.v1+json"),
            "layers": [_described(layer, "layer.v1.tar")],
        }
    )
    named = _described(manifest, "manifest.v1+json") | {"annotations": {"io.containerd.image.name": name}}
    blobs = {f"blobs/sha256/{_digest(blob).partition(':')[2]}": blob for blob in (layer, config, manifest)}
    index = _json({"schemaVersion": 2, "manifests": [named]})
    return _tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index, **blobs})


def rename(archive: Path, name: str, copy: Path) -> None:
    """The same image under another name alone."""
    with tarfile.open(archive) as packed, tarfile.open(copy, "w") as renamed:
        for entry in packed:
            content = packed.extractfile(entry)
            if entry.name == "index.json" and content is not None:
                index = json.load(content)
                index["manifests"][0]["annotations"] = {"io.containerd.image.name": name}
                changed = _json(index)
                entry.size, content = len(changed), io.BytesIO(changed)
            renamed.addfile(entry, content)


def _architecture(program: bytes) -> str:
    """By the ELF header's e_machine: 62 is x86-64, 183 is AArch64."""
    return {62: "amd64", 183: "arm64"}[int.from_bytes(program[18:20], "little")]


def _described(blob: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": f"{_TYPES}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
