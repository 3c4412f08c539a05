"""Writes a tar file again so that the same content gives the same bytes: the programs that write them put in times."""

import gzip
import tarfile
from contextlib import ExitStack
from pathlib import Path


def retar(path: Path, seconds: int = 0) -> None:
    """Entries by name, of root, of this time, which counts from 1970. What was compressed by gzip stays so."""
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
