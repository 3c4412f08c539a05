"""What the machine at hand cannot run is skipped, and says why; a slow machine fails nothing."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from simulation.nvml.build import BuildFailed, NoCompiler, build_library

pytest_plugins = ["tests.cluster.fixtures"]

# The same examples in every run: a change is refused for what it does, not by luck. TOPOGPU_NIGHTLY=1 tries new ones.
settings.register_profile(
    "topogpu",
    max_examples=40,
    deadline=None,
    derandomize=os.environ.get("TOPOGPU_NIGHTLY") != "1",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("topogpu"), max_examples=200)  # `make coverage`
settings.load_profile("topogpu")


def pytest_configure() -> None:
    """A shell starts jobs in the background with SIGINT ignored, and each program would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _missing_compiler() -> str:
    try:
        build_library()
    except BuildFailed:
        return ""  # a compiler that fails is a failure of the tests, not a reason to skip them
    except NoCompiler as error:
        return str(error)
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each process collects another part of a folder first: what one compiled, the others read."""
    report = yield
    if isinstance(collector, pytest.Directory) and report.passed:
        processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        first = len(report.result) * process // processes
        report.result = report.result[first:] + report.result[:first]
    return report


def pytest_collection_finish() -> None:
    """Whatever was collected is left out of each search for garbage: it stays until the end."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips `needs_compiler` tests where nothing can compile the fake NVML library.

    A file with few tests, which wait for real programs, and one with many, which compute, come by turns: together they
    keep all cores busy. The longest tests are those in files with few: one that began last would run alone.
    """
    tests = Counter(item.path for item in items)
    paths = sorted(tests, key=lambda path: (tests[path], path))
    turn = {path: (min(place, len(paths) - 1 - place), place) for place, path in enumerate(paths)}
    items.sort(key=lambda item: turn[item.path])
    marked = [item for item in items if item.get_closest_marker("needs_compiler")]
    reason = _missing_compiler() if marked else ""
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
