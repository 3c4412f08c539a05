"""Loads NVIDIA's library, and loads it again after it was shut down under us.

Calls block and belong to one thread.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from deviceplugin.container.driver_files import NoDriver
from deviceplugin.nvml.calls import UNINITIALIZED, CallFailed, NvmlCalls
from deviceplugin.nvml.lanes import HANG_SECONDS, Hangs

_INIT_PROBLEMS = {
    9: "the NVIDIA driver is not loaded on this machine",
    12: "no NVIDIA driver on this machine: libnvidia-ml.so.1 is not found",
    18: "the NVIDIA driver was upgraded under this process; restart it",
    28: "the NVIDIA driver finds no GPU on this machine",
    999: "the NVIDIA driver answers only 'unknown error'; restart this process, it may have lost its access to GPUs",
}
_RESTART_CODES = (18, 999)
_MOST_GPUS = 256
"""Each is read on a thread of its own."""
_WHOLE = "machine"
"""A lane beside those of the GPUs."""
_GONE_PROBLEMS = {
    9: "the NVIDIA driver was unloaded under this process; restart it",
    18: _INIT_PROBLEMS[18],
    999: _INIT_PROBLEMS[999],
}
"""The driver had worked: a library in memory does not find another one."""


class NvmlUnavailable(Exception):
    """No library, no driver or no access, in one sentence. `needs_restart`: only a new process can see it again."""

    def __init__(self, problem: str, *, needs_restart: bool = False) -> None:
        super().__init__(problem)
        self.needs_restart = needs_restart


class NvmlLibrary:
    """`library` is a path to load in place of the loader's libnvidia-ml.so.1, or returns it now, which raises NoDriver.
    `closed` is called after the library has gone, and all handles with it.
    """

    def __init__(self, library: str | Callable[[], str] | None, closed: Callable[[], None]) -> None:
        self._library = library
        self._closed = closed
        self._calls: NvmlCalls | None = None

    def calls(self) -> NvmlCalls:
        """Returns the library, loaded and initialised once. Raises NvmlUnavailable."""
        if self._calls is None:
            self._calls = self._opened()
        return self._calls

    def _opened(self) -> NvmlCalls:
        import pynvml  # noqa: PLC0415 - only a process that reads GPUs pays for it

        if self._library is not None:
            try:
                path = self._library if isinstance(self._library, str) else self._library()
                pynvml.nvmlLib = ctypes.CDLL(path)
            except NoDriver as error:
                raise NvmlUnavailable(str(error)) from error
            except OSError as error:
                raise NvmlUnavailable(f"cannot load the NVML library {path}: {error}") from error
        calls = NvmlCalls(pynvml)
        try:
            calls.ask("nvmlInit")
        except CallFailed as error:
            problem = _INIT_PROBLEMS.get(error.code, f"the NVIDIA driver cannot be used: {error.problem}")
            raise NvmlUnavailable(problem, needs_restart=error.code in _RESTART_CODES) from error
        return calls

    def close(self) -> None:
        """Lets the driver go, without a call to one that still owes an answer."""
        if self._calls is not None:
            if not self._calls.lanes.any_hangs:
                with suppress(CallFailed):
                    self._calls.ask("nvmlShutdown")
            self._forget(self._calls)

    def _forget(self, calls: NvmlCalls) -> None:
        calls.lanes.close()
        self._calls = None
        self._closed()

    def count(self) -> int:
        """Returns the number of GPUs, of a library that is opened again if it was shut down under us. Raises
        NvmlUnavailable.
        """
        try:
            try:
                return self._ask_count()
            except CallFailed as error:
                if error.code != UNINITIALIZED:
                    raise
                self._forget(self.calls())
                return self._ask_count()
        except CallFailed as error:
            raise NvmlUnavailable(
                _GONE_PROBLEMS.get(error.code, f"the NVIDIA driver does not count its GPUs: {error.problem}"),
                needs_restart=error.code in _GONE_PROBLEMS,
            ) from error

    def _ask_count(self) -> int:
        """Raises CallFailed or NvmlUnavailable."""
        calls = self.calls()
        # Without a count there is no news of any GPU that would have to wait.
        results = calls.lanes.ask("count", {_WHOLE: partial(calls.ask, "nvmlDeviceGetCount")}, HANG_SECONDS)
        count = results[_WHOLE]
        if isinstance(count, Hangs):
            raise NvmlUnavailable(f"{count}; dmesg may show why")
        if count > _MOST_GPUS:
            raise NvmlUnavailable(f"the NVIDIA driver counts {count} GPUs, which cannot be; restart the node")
        return int(count)
