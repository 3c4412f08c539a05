"""What the check of the image finds in archives that are made here."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from daemonset.image import CannotBuild
from daemonset.image_archive import Archive
from daemonset.image_check import added, differences, licences, twice, unwanted, with_licence_file

Tree = Mapping[str, bytes]
USER = "65532:65532"


def archive(path: Path, *layers: Tree, user: str = USER) -> Archive:
    """As buildah writes one: each file of a layer, and what it takes away."""
    blobs = [gzip.compress(packed(layer), mtime=0) for layer in layers]
    configuration = json.dumps({"config": {"User": user}}).encode()
    manifest = json.dumps(
        {"config": {"digest": digest(configuration)}, "layers": [{"digest": digest(blob)} for blob in blobs]}
    ).encode()
    files = {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (configuration, manifest, *blobs)}
    files["index.json"] = json.dumps({"manifests": [{"digest": digest(manifest)}]}).encode()
    path.write_bytes(packed(files))
    return Archive(path)


def digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def packed(files: Tree) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            one = tarfile.TarInfo(name)
            one.size = len(content)
            made.addfile(one, io.BytesIO(content))
    return buffer.getvalue()


def test_the_same_layers_have_one_digest_and_other_ones_are_named(tmp_path: Path) -> None:
    tree = {"opt/topogpu/a.py": b"1", "opt/topogpu/b.py": b"2"}
    one, same = archive(tmp_path / "1", tree), archive(tmp_path / "2", tree)
    other = archive(tmp_path / "3", {"opt/topogpu/a.py": b"3", "opt/topogpu/c.py": b"2"})
    assert one.digest == same.digest != other.digest
    assert differences(one.files(), same.files()) == []
    assert differences(one.files(), other.files()) == [
        "opt/topogpu/b.py: only once",
        "opt/topogpu/c.py: only once",
        "opt/topogpu/a.py: differs",
    ]


def test_a_later_layer_replaces_files_and_takes_them_away(tmp_path: Path) -> None:
    found = archive(tmp_path / "1", {"etc/a": b"1", "etc/b": b"2"}, {"etc/a": b"3", "etc/.wh.b": b""})
    assert list(found.files()) == ["etc/a"]
    assert found.read("etc/a") == b"3"


def test_programs_that_build_tests_and_the_root_user_are_unwanted(tmp_path: Path) -> None:
    good = archive(
        tmp_path / "1", {"opt/topogpu/bin/python": b"", "opt/topogpu/lib/pipes.py": b"", "usr/share/gcc": b""}
    )
    assert unwanted(good.files(), USER) == []
    unneeded = ("opt/x/tests", "usr/bin/gcc-12", "opt/topogpu/bin/pip", "opt/topogpu/bin/kubectl-topogpu")
    bad = archive(tmp_path / "2", dict.fromkeys(unneeded, b""), user="")
    assert unwanted(bad.files(), bad.configuration["User"]) == [
        "/opt/topogpu/bin/kubectl-topogpu is in the image.",
        "/opt/topogpu/bin/pip is in the image.",
        "/opt/x/tests is in the image.",
        "/usr/bin/gcc-12 is in the image.",
        "The image runs as root.",
    ]


def test_licences_are_read_in_every_form_and_their_lack_shows() -> None:
    bill = {
        "components": [
            {"name": "a", "licenses": [{"license": {"id": "MIT"}}]},
            {"name": "b", "licenses": [{"expression": "Apache-2.0 OR MIT"}]},
            {"name": "c", "licenses": [{"license": {"name": "BSD"}}]},
            {"name": "d"},
        ]
    }
    assert licences(bill) == {"a": "MIT", "b": "Apache-2.0 OR MIT", "c": "BSD", "d": ""}


def test_a_licence_may_lie_beside_the_metadata(tmp_path: Path) -> None:
    site = "opt/topogpu/lib/python3.11/site-packages"
    files = {f"{site}/A_b-1.dist-info/licenses/LICENSE.txt": b"", f"{site}/c-1.dist-info/METADATA": b""}
    assert with_licence_file(archive(tmp_path / "1", files).files()) == {"a-b"}


def test_the_image_for_simulated_gpus_adds_nothing_but_the_simulation(tmp_path: Path) -> None:
    base, lib = {"opt/topogpu/a.py": b"1"}, {"opt/topogpu-simulated/lib/libnvidia-ml.so.1": b"2"}
    product = archive(tmp_path / "1", base)
    assert added(product, archive(tmp_path / "2", base, lib)) == []
    assert added(product, archive(tmp_path / "3", {"other": b""}, lib)) == [
        "The image for simulated GPUs is not built on the product's image."
    ]
    assert added(product, archive(tmp_path / "4", base, {**lib, "usr/bin/gcc": b""}, user="")) == [
        "/usr/bin/gcc of the image for simulated GPUs is outside of /opt/topogpu-simulated/",
        "The image for simulated GPUs runs as root.",
    ]


def test_builds_that_differ_are_refused_with_the_files_that_differ(tmp_path: Path) -> None:
    archive(tmp_path / "1", {"opt/a": b"1"})
    archive(tmp_path / "2", {"opt/a": b"2"})
    assert twice(lambda _: tmp_path / "1").files()
    with pytest.raises(CannotBuild, match="opt/a: differs"):
        twice(lambda again: tmp_path / ("2" if again else "1"))
