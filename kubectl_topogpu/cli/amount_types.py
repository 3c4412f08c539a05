"""Types of options: memory of a GPU, and a percentage."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import click

from kubectl_topogpu.amounts import AmountError, read_memory, read_percent

T = TypeVar("T")


class AmountType(click.ParamType[T], Generic[T]):
    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._read(str(value))
        except AmountError as error:
            self.fail(str(error), param, ctx)


MEMORY = AmountType("memory", read_memory)
PERCENT = AmountType("percent", read_percent)
