"""One cluster for the whole session; each test installs, or several of a file do once, and nothing is left behind."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from proto import __version__
from tests.cluster.binaries import NoBinaries, known
from tests.deploy import images, needs
from tests.deploy.cluster import Cluster, missing, running
from tests.node import machine

REGISTRIES = ("docker.io/library", "registry.example.com")
LOGS = Path(__file__).parents[2] / "build" / "deploy"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Skipped, with the reason, where it cannot be had. What its programs say stays in build/deploy."""
    lacking = machine.missing() or missing()
    if lacking:
        pytest.skip(f"a whole cluster cannot be run here: {lacking}")
    release = known(os.environ.get("KUBERNETES_RELEASE", ""))
    try:
        found = needs.find(release)
        archives = [images.current(name) for name in (images.PRODUCT, images.SIMULATED)]
    except (NoBinaries, images.NoImage) as reason:
        pytest.skip(str(reason))
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    with running(found.control_plane, found.node, found.more, release, LOGS) as made:
        for archive in archives:
            made.import_image(archive, *(f"{registry}/{archive.stem}:{__version__}" for registry in REGISTRIES))
        yield made


@pytest.fixture(scope="module")
def gpus(cluster: Cluster) -> Iterator[Cluster]:
    """Its Node is labelled as one with GPUs."""
    cluster.kubectl("label --overwrite node node-a nvidia.com/gpu.present=true")
    yield cluster
    cluster.kubectl("label node node-a nvidia.com/gpu.present-")
