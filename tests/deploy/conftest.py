"""One cluster for the whole session; each test installs, and leaves nothing behind."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemonset import helm
from proto import __version__
from tests.cluster import binaries as control_plane
from tests.cluster.binaries import Binaries, NoBinaries, known
from tests.deploy import binaries, images
from tests.deploy.cluster import Cluster, missing, running
from tests.node import binaries as node
from tests.node import machine

REGISTRIES = ("docker.io/library", "registry.example.com")
LOGS = Path(__file__).parents[2] / "build" / "deploy"


@pytest.fixture(scope="session")
def cluster(kubernetes: Binaries) -> Iterator[Cluster]:
    """Skipped, with the reason, where it cannot be had. What its programs say stays in build/deploy."""
    lacking = machine.missing() or missing()
    if lacking:
        pytest.skip(f"a whole cluster cannot be run here: {lacking}")
    release = known(os.environ.get("KUBERNETES_RELEASE", ""))
    try:
        helm.find()
        archives = [images.current(name) for name in (images.PRODUCT, images.SIMULATED)]
        found = control_plane.find(release), node.find(release), binaries.find(release)
    except (NoBinaries, helm.NoHelm, images.NoImage) as reason:
        pytest.skip(str(reason))
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    with running(*found, release, LOGS) as made:
        for archive in archives:
            made.import_image(archive, *(f"{registry}/{archive.stem}:{__version__}" for registry in REGISTRIES))
        yield made


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[Cluster]:
    """Its Node is labelled as one with GPUs."""
    cluster.kubectl("label --overwrite node node-a nvidia.com/gpu.present=true")
    yield cluster
    cluster.kubectl("label node node-a nvidia.com/gpu.present-")
