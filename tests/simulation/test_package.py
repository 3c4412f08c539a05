"""What is installed with the product and what is not: `pyproject.toml` and `simulation/pyproject.toml`."""

import tomllib
from pathlib import Path
from typing import Any

from proto import __version__

ROOT = Path(__file__).parents[2]


def project(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text())


def test_the_extra_the_simulation_and_the_product_have_one_version() -> None:
    product, simulation = project("pyproject.toml"), project("simulation/pyproject.toml")
    assert simulation["project"]["version"] == __version__
    assert simulation["project"]["dependencies"] == [f"topogpu=={__version__}"]
    assert product["project"]["optional-dependencies"]["simulation"] == [f"topogpu-simulation=={__version__}"]


def test_every_package_of_the_simulation_is_installed_with_it_and_none_with_the_product() -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "simulation").rglob("__init__.py")}
    packages = project("simulation/pyproject.toml")["tool"]["setuptools"]["packages"]
    assert set(packages) == {".".join(folder.parts) for folder in folders}
    product = project("pyproject.toml")["tool"]["setuptools"]["packages"]["find"]["include"]
    assert [pattern for pattern in product if Path("simulation").match(pattern)] == []
