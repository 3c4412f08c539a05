"""What the image's modules import, where only the packages are that daemonset/requirements.lock pins."""

import ast
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from daemonset import prune, render

ROOT = render.HERE.parent
REFUSING = """
import sys

class NotInTheImage:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"{{name}} is not in the image", name=name)

sys.meta_path.insert(0, NotInTheImage())
"""


def plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def pinned() -> set[str]:
    lock = (render.HERE / "requirements.lock").read_text()
    return {plain(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}


def in_the_image() -> set[str]:
    """Returns names of the packages that one of the pinned distributions brings."""
    return {
        package for package, brought in packages_distributions().items() if not pinned().isdisjoint(map(plain, brought))
    }


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_every_module_of_the_image_imports_with_the_locked_packages_alone() -> None:
    elsewhere = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - set(prune.OURS)
    refused = elsewhere | (packages_distributions().keys() - in_the_image() - set(prune.OURS))
    assert {"kubectl_topogpu", "simulation", "pytest"} <= refused
    walk = REFUSING.format(refused=sorted(refused)) + prune.IMPORT_ALL
    done = subprocess.run([sys.executable, "-B", "-c", walk], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_import_within_a_function_needs_more_than_the_locked_packages() -> None:
    there = {*prune.OURS, *in_the_image(), *sys.stdlib_module_names}
    files = [path for package in prune.OURS for path in (ROOT / package).rglob("*.py")]
    lacking = {(str(path.relative_to(ROOT)), name) for path in files for name in imported(ast.parse(path.read_text()))}
    assert {(path, name) for path, name in lacking if name not in there} == set()


def test_pruning_the_image_takes_away_what_no_module_of_ours_loads() -> None:
    """What lies here beside the locked packages is not in the image."""
    site = Path(sysconfig.get_path("purelib"))
    gone = {plain(each.name) for each in prune.unused(site, prune.loaded())} & pinned()
    assert {"pydantic-core", "pygments", "requests"} <= gone
    assert gone.isdisjoint({"aiohttp", "cffi", "cryptography", "grpcio", "idna", "kubernetes", "nvidia-ml-py", "rich"})
