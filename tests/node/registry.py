"""A registry that has one image: as much of the distribution API as a pull needs.

Source: spec.md of opencontainers/distribution-spec, "Pulling manifests" and "Pulling blobs".
"""

import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(archive: Path, port: int) -> Iterator[None]:
    """The image of the OCI archive, under every name and tag, on 127.0.0.1."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(_blobs(archive)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _blobs(archive: Path) -> Mapping[str, bytes]:
    """By digest."""
    with tarfile.open(archive) as packed:
        blobs = {
            f"sha256:{entry.name.rpartition('/')[2]}": _content(packed, entry)
            for entry in packed
            if entry.name.startswith("blobs/")
        }
        index = json.loads(_content(packed, packed.getmember("index.json")))
    return blobs | {"manifest": blobs[index["manifests"][0]["digest"]]}


def _content(packed: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = packed.extractfile(entry)
    assert file is not None
    return file.read()


def _handler(blobs: Mapping[str, bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            what, _, name = self.path.partition("?")[0].rpartition("/")
            key = name if name in blobs else "manifest" if what.endswith("/manifests") else ""
            body = b"" if self.path == "/v2/" else blobs.get(key)
            self.send_response(404 if body is None else 200)
            if what.endswith("/manifests"):
                self.send_header("Content-Type", "application/vnd.oci.image.manifest.v1+json")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if with_body:
                self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            pass

    return Handler
