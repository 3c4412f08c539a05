"""Calls NVML through nvidia-ml-py: turns its errors into ours, and splits batched fields."""

import ctypes
import re
from collections.abc import Hashable, Mapping, Sequence
from types import ModuleType
from typing import Any

from deviceplugin.nvml.lanes import Lanes
from proto.devices import DeviceUUID

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
ARGUMENT_VERSION_MISMATCH = 25

_ABSENT = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
"""Codes for something that a GPU, a driver or this process does not have. Which of them differs by
release: a field that a driver does not know is an invalid argument to one and not supported by another.
"""
_OF_A_LINK = "nvmlDeviceGetNvLinkRemote"
"""Calls that a link refuses as not supported only while it is down."""
_UUID = re.compile(r"[A-Za-z0-9/_-]{1,80}")
"""`GPU-<uuid>`, `MIG-<uuid>`, `MIG-GPU-<uuid>/<gi>/<ci>`."""
_SMALL = 4096
"""A larger number is a time or an amount: it makes no other question."""
_ATTEMPTS = 3
"""Readings of a list that grows between the calls for its length and its content."""


class CallFailed(Exception):
    """The driver refused the call. `code` is nvmlReturn_t."""

    def __init__(self, function: str, code: int, problem: str) -> None:
        super().__init__(f"{function}: {problem}")
        self.function = function
        self.code = code
        self.problem = problem

    @property
    def is_absent(self) -> bool:
        """Returns whether the driver does not have this at all: another call brings no other answer."""
        return self.code in _ABSENT

    @property
    def is_passing(self) -> bool:
        """Returns whether the next answer may be another one."""
        return not self.is_absent and self.code != NOT_FOUND


class GpuGone(CallFailed):
    """The GPU has fallen off the bus or waits for a reset: no call on it means anything."""

    @property
    def is_passing(self) -> bool:
        return False


class NvmlCalls:
    """The loaded package, for one initialisation. Handles and structs are its own untyped objects."""

    def __init__(self, pynvml: ModuleType, shared: "NvmlCalls | None" = None) -> None:
        """Takes over all that `shared` has, except for `failure`."""
        self.pynvml = pynvml
        self.lanes: Lanes = Lanes() if shared is None else shared.lanes
        """Threads for calls that may hang, shared by all threads that use the library."""
        self.failure: CallFailed | None = None
        """The first answer that `ask_or` and `field` did without, and that may come the next time."""
        self._refused: set[tuple[Hashable, ...]] = set() if shared is None else shared._refused

    def noting(self) -> "NvmlCalls":
        """Returns the same library; what fails from now on is its own `failure`."""
        return NvmlCalls(self.pynvml, self)

    def ask(self, function: str, *arguments: object) -> Any:
        """Returns the call's answer. Raises CallFailed, as its sub-class GpuGone where the whole GPU is meant."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._ask_once(function, *arguments)
            except CallFailed as error:
                if error.code != INSUFFICIENT_SIZE:
                    raise
        return self._ask_once(function, *arguments)

    def _ask_once(self, function: str, *arguments: object) -> Any:
        try:
            return getattr(self.pynvml, function)(*arguments)
        except self.pynvml.NVMLError as error:
            kind = GpuGone if error.value in (GPU_IS_LOST, RESET_REQUIRED) else CallFailed
            raise kind(function, error.value, str(error)) from error
        except (AttributeError, getattr(self.pynvml, "NVMLLibraryMismatchError", AttributeError)) as error:
            # An nvidia-ml-py newer than the driver: the same as a driver without the call.
            raise CallFailed(function, FUNCTION_NOT_FOUND, str(error)) from error
        except UnicodeDecodeError as error:
            raise CallFailed(function, FUNCTION_NOT_FOUND, "the answer is no text") from error
        except (IndexError, MemoryError, ValueError) as error:
            raise CallFailed(function, INSUFFICIENT_SIZE, "the answer has another length than it names") from error

    def ask_or(self, default: Any, function: str, *arguments: object) -> Any:
        """Returns the answer, or `default` if the driver refuses. An unsupported call is made once. Raises GpuGone."""
        question = (function, *map(_same, arguments))
        if question in self._refused:
            return default
        try:
            return self.ask(function, *arguments)
        except CallFailed as error:
            self._note_refusal(error, question)
            return default

    def ask_if_there(self, function: str, *arguments: object) -> Any:
        """Returns the call's answer, None if the driver does not have it. Raises CallFailed if it has it and fails."""
        question = (function, *map(_same, arguments))
        try:
            return None if question in self._refused else self.ask(function, *arguments)
        except CallFailed as error:
            self._note_refusal(error, question)
            if question in self._refused:
                return None
            raise

    def field(self, handle: object, number: int, scope: int = 0) -> int | None:
        """Returns an integer field, None where it is refused; one that is not there is read once. Raises GpuGone."""
        question = ("field", _same(handle), number, scope)
        if question in self._refused:
            return None
        try:
            return self.ask_field(handle, number, scope)
        except CallFailed as error:
            self._note_refusal(error, question)
            return None

    def ask_field(self, handle: object, number: int, scope: int = 0) -> int:
        """Returns an integer field. Raises CallFailed, as its sub-class GpuGone where the whole GPU is meant."""
        return _field_value(self.ask("nvmlDeviceGetFieldValues", handle, [(number, scope)])[0])

    def fields(self, handle: object, wanted: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], int]:
        """Returns integer fields by number and scope, in one call, without those that are refused. Raises GpuGone."""
        questions = {field: ("field", _same(handle), *field) for field in wanted}
        accepted = [field for field in wanted if questions[field] not in self._refused]
        values: dict[tuple[int, int], int] = {}
        answers = self.ask_or((), "nvmlDeviceGetFieldValues", handle, accepted) if accepted else ()
        for field, answer in zip(accepted, answers, strict=False):
            try:
                values[field] = _field_value(answer)
            except CallFailed as error:
                self._note_refusal(error, questions[field])
        return values

    def forget_refusals(self, handle: object) -> None:
        """Reads everything of this GPU again: it is another one, or its MIG mode changed."""
        # Other threads may add meanwhile: a tuple is made in one step.
        self._refused.difference_update(each for each in tuple(self._refused) if _same(handle) in each[1:])

    def _note_refusal(self, error: CallFailed, question: tuple[Hashable, ...]) -> None:
        """Raises the error where it is GpuGone."""
        if isinstance(error, GpuGone):
            raise error
        if error.is_passing:
            self.failure = self.failure or error
        elif error.is_absent and not error.function.startswith(_OF_A_LINK) and not _is_about_handle(error):
            self._refused.add(question)


def _field_value(answer: Any) -> int:
    """Raises CallFailed, as its sub-class GpuGone where the whole GPU is meant."""
    if answer.nvmlReturn != 0:
        kind = GpuGone if answer.nvmlReturn in (GPU_IS_LOST, RESET_REQUIRED) else CallFailed
        problem = f"field {answer.fieldId}: error {answer.nvmlReturn}"
        raise kind("nvmlDeviceGetFieldValues", answer.nvmlReturn, problem)
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    member = members.get(answer.valueType)
    if member is None:
        raise CallFailed("nvmlDeviceGetFieldValues", NOT_SUPPORTED, f"field {answer.fieldId}: type {answer.valueType}")
    return int(getattr(answer.value, member))


def _is_about_handle(error: CallFailed) -> bool:
    """An invalid argument may be the handle of a GPU that went; among fields it is the field's number."""
    return error.code == INVALID_ARGUMENT and error.function != "nvmlDeviceGetFieldValues"


def _same(argument: object) -> Hashable:
    """Returns equal keys for arguments with the same meaning: any two handles of one GPU, any two buffers."""
    if isinstance(argument, ctypes._Pointer):
        return f"GPU {ctypes.cast(argument, ctypes.c_void_p).value}"
    if isinstance(argument, int):
        return min(argument, _SMALL)
    return type(argument).__name__


def read_uuid(calls: NvmlCalls, handle: object) -> DeviceUUID:
    """Reads the UUID of a GPU or MIG device. Raises CallFailed, also if annotations and kubelet could not name it."""
    uuid = calls.ask("nvmlDeviceGetUUID", handle)
    if not _UUID.fullmatch(uuid):
        raise CallFailed("nvmlDeviceGetUUID", FUNCTION_NOT_FOUND, "the driver reports no UUID that can be one")
    return DeviceUUID(uuid)


def bus_id_of(pci: Any) -> str:
    """Returns the bus id in an answer's struct, which nvidia-ml-py decodes on access; empty if it is no text."""
    try:
        return str(pci.busId).upper()
    except UnicodeDecodeError:
        return ""
