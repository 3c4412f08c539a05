"""The type of options for memory of a GPU."""

from typing import Any

import click

from kubectl_topogpu.amounts import AmountError, AskedMemory, read_memory


class MemoryType(click.ParamType[AskedMemory]):
    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AskedMemory:
        try:
            return read_memory(str(value))
        except AmountError as error:
            self.fail(str(error), param, ctx)
