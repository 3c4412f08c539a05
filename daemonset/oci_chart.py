"""Packs the chart as an OCI layout, which registries take as they take an image.

Media types: Helm's `pkg/registry/constants.go`. Format: OCI image layout 1.0.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import yaml

_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def pack(package: Path, target: Path) -> str:
    """Writes the layout of a chart's package (.tgz) as a tar file, and returns the manifest's digest."""
    content = package.read_bytes()
    with tarfile.open(package) as chart:
        described = next(one for one in chart if one.name.count("/") == 1 and one.name.endswith("/Chart.yaml"))
        text = chart.extractfile(described)
        assert text is not None
        metadata = yaml.safe_load(text.read())
    config = json.dumps(metadata, sort_keys=True).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _described(_CONFIG, config),
            "layers": [_described(_CONTENT, content)],
            "annotations": {
                "org.opencontainers.image.title": metadata["name"],
                "org.opencontainers.image.version": metadata["version"],
                "org.opencontainers.image.description": metadata["description"],
            },
        },
        sort_keys=True,
    ).encode()
    named = {"annotations": {"org.opencontainers.image.ref.name": metadata["version"]}}
    index = {"schemaVersion": 2, "manifests": [_described(_MANIFEST, manifest) | named]}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index, sort_keys=True).encode()}
    files |= {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (config, content, manifest)}
    with tarfile.open(target, "w") as layout:
        for name, blob in sorted(files.items()):
            one = tarfile.TarInfo(name)
            one.size = len(blob)
            layout.addfile(one, io.BytesIO(blob))
    return _digest(manifest)


def _described(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
