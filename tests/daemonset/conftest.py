"""What is shipped, and Helm and kubectl where they can be had: tests that need them are skipped with what to do."""

import shutil

import pytest

from daemonset import helm, render
from daemonset.render import Manifest
from tests.daemonset.shipped import base, rendered


@pytest.fixture(scope="session")
def chart() -> None:
    """For tests that render the chart."""
    try:
        helm.find()
    except helm.NoHelm as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["committed", *render.variants()])
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    """What is committed, and what the chart renders with each overlay's values."""
    if request.param == "committed":
        return base()
    request.getfixturevalue("chart")
    return rendered(request.param)


@pytest.fixture(scope="session")
def kubectl() -> str:
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("there is no kubectl: install it to have the overlays built")
    return found
