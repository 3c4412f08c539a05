"""One NVML call at a time through nvidia-ml-py: its errors as ours, its batched fields one by one."""

from types import ModuleType
from typing import Any

GPU_IS_LOST = 15
RESET_REQUIRED = 16
FUNCTION_NOT_FOUND = 13


class CallFailed(Exception):
    """The driver answered no. `code` is nvmlReturn_t."""

    def __init__(self, function: str, code: int, problem: str) -> None:
        super().__init__(f"{function}: {problem}")
        self.code = code
        self.problem = problem


class GpuGone(CallFailed):
    """The GPU has fallen off the bus or waits for a reset: no call on it means anything."""


class NvmlCalls:
    """The loaded package. Handles and structs are its own untyped objects."""

    def __init__(self, pynvml: ModuleType) -> None:
        self.pynvml = pynvml

    def ask(self, function: str, *arguments: object) -> Any:
        """The call's answer. Raises CallFailed, as its sub-class GpuGone where the whole GPU is meant."""
        try:
            return getattr(self.pynvml, function)(*arguments)
        except self.pynvml.NVMLError as error:
            kind = GpuGone if error.value in (GPU_IS_LOST, RESET_REQUIRED) else CallFailed
            raise kind(function, error.value, str(error)) from error
        except (AttributeError, UnicodeDecodeError) as error:
            # An nvidia-ml-py older than the call, or a name that is no text: the same as a driver without it.
            raise CallFailed(function, FUNCTION_NOT_FOUND, str(error)) from error

    def ask_or(self, default: Any, function: str, *arguments: object) -> Any:
        """`default` where the driver refuses this one call. Raises GpuGone."""
        try:
            return self.ask(function, *arguments)
        except GpuGone:
            raise
        except CallFailed:
            return default

    def field(self, handle: object, number: int, scope: int = 0) -> int | None:
        """An integer field, None where the entry is refused. Raises GpuGone."""
        values = self.ask_or(None, "nvmlDeviceGetFieldValues", handle, [(number, scope)])
        if values is None:
            return None
        value = values[0]
        if value.nvmlReturn in (GPU_IS_LOST, RESET_REQUIRED):
            raise GpuGone("nvmlDeviceGetFieldValues", value.nvmlReturn, f"field {number}: error {value.nvmlReturn}")
        if value.nvmlReturn != 0:
            return None
        members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
        member = members.get(value.valueType)
        return int(getattr(value.value, member)) if member else None


def as_text(value: str | bytes) -> str:
    """nvidia-ml-py up to 11.510 answers bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
