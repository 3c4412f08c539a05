"""Builds the simulation's wheel, with the simulated driver built for the platform of the wheel.

Where there is no C compiler, the wheel is one for every platform, and the library is built at its first use.
"""

import runpy
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_BUILD = runpy.run_path(str(Path(__file__).parent / "nvml" / "build.py"))


def _built() -> Path | None:
    """Returns the library, in a folder of its own; None where no wheel is made, or no compiler is there."""
    if "bdist_wheel" not in sys.argv:  # an editable installation takes the library from the user's cache
        return None
    try:
        library: Path = _BUILD["build_library"](Path(tempfile.mkdtemp()))
    except _BUILD["BuildFailed"]:
        raise
    except _BUILD["NoCompiler"] as problem:
        print(f"without the library of the simulated driver: {problem}")
        return None
    return library


_LIBRARY = _built()


class _OfThisPlatform(Distribution):
    def has_ext_modules(self) -> bool:
        return _LIBRARY is not None


class _WithLibrary(build_py):
    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[1] != "setup"]

    def run(self) -> None:
        super().run()
        if _LIBRARY is not None:
            shutil.copy(_LIBRARY, Path(self.build_lib) / "simulation" / "nvml")


class _ForEveryPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=_OfThisPlatform, cmdclass={"build_py": _WithLibrary, "bdist_wheel": _ForEveryPython})
