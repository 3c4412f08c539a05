"""Reads an OCI archive: its digest, its configuration and its files. Format: OCI image layout 1.0."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """`content` is a digest of a file's bytes, or a link's target."""

    mode: int
    owner: tuple[int, int]
    size: int
    content: str


class Archive:
    """One image, as buildah and podman write it."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as whole:
            self._members = {
                one.name.removeprefix("./"): whole.extractfile(one).read()  # type: ignore[union-attr]
                for one in whole
                if one.isfile()
            }
        (described,) = json.loads(self._members["index.json"])["manifests"]
        self.digest: str = described["digest"]
        """The digest of the manifest: a registry and `image.digest` name the image by it."""
        self._manifest: dict[str, Any] = json.loads(self._blob(self.digest))

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Returns the settings of containers: User, Env, Entrypoint."""
        found: Mapping[str, Any] = json.loads(self._blob(self._manifest["config"]["digest"]))["config"]
        return found

    def layers(self) -> list[str]:
        """Returns their digests, the base's first."""
        return [layer["digest"] for layer in self._manifest["layers"]]

    def files(self, first: int = 0) -> dict[str, ArchivedFile]:
        """Returns files by path without a leading slash, of all layers together, or of those from this one on."""
        found: dict[str, ArchivedFile] = {}
        for digest in self.layers()[first:]:
            for name, file in self._layer(digest):
                folder, _, last = name.rpartition("/")
                if last.startswith(".wh."):
                    found.pop(f"{folder}/{last.removeprefix('.wh.')}".lstrip("/"), None)
                else:
                    found[name] = file
        return found

    def read(self, name: str) -> bytes:
        """Returns a file of the last layer that has it. Raises KeyError."""
        for digest in reversed(self.layers()):
            with self._open(digest) as layer:
                for one in layer:
                    if one.isfile() and one.name.removeprefix("./") == name:
                        content = layer.extractfile(one)
                        return content.read() if content else b""
        raise KeyError(name)

    def _layer(self, digest: str) -> Iterator[tuple[str, ArchivedFile]]:
        with self._open(digest) as layer:
            for one in layer:
                content = layer.extractfile(one) if one.isfile() else None
                said = hashlib.sha256(content.read()).hexdigest() if content else one.linkname
                yield one.name.removeprefix("./"), ArchivedFile(one.mode, (one.uid, one.gid), one.size, said)

    def _open(self, digest: str) -> tarfile.TarFile:
        blob = self._blob(digest)
        plain = gzip.decompress(blob) if blob[:2] == b"\x1f\x8b" else blob
        return tarfile.open(fileobj=io.BytesIO(plain))

    def _blob(self, digest: str) -> bytes:
        return self._members[f"blobs/{digest.replace(':', '/')}"]


def retar(path: Path, seconds: int = 0) -> None:
    """Sorts entries by name, and makes them root's and of this time since 1970. What gzip compressed stays so."""
    compressed = path.read_bytes()[:2] == b"\x1f\x8b"
    partial = path.with_name(f"{path.name}.partial")
    try:
        with tarfile.open(path) as before, partial.open("wb") as file, ExitStack() as open_ones:
            into = open_ones.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)) if compressed else file
            with tarfile.open(fileobj=into, mode="w") as after:
                for one in sorted(before, key=lambda entry: entry.name):
                    content = before.extractfile(one) if one.isfile() else None
                    one.mtime, one.uid, one.gid, one.uname, one.gname, one.pax_headers = seconds, 0, 0, "", "", {}
                    after.addfile(one, content)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
