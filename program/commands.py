"""Commands and types of their options. Modules are imported on use: `--help` is quick, and each command imports only
what it needs.
"""

import errno
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from math import isnan
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def modules_kept() -> Iterator[None]:
    """Keeps modules out of the collector, because scanning them again and again takes a tenth of the start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class WholeNumber(click.IntRange):
    """Digits alone: Python also reads ` 5 `, `1_0`, and the digits of other scripts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and not (value.isascii() and value.removeprefix("-").isdigit()):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return int(super().convert(value, param, ctx))


class RealNumber(click.FloatRange):
    """The range, in which `nan` is not, though it is neither below nor above."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{number} is not a number", param, ctx)
        return number


class Commands(click.Group):
    """A program's commands. Where the terminal's encoding lacks a character, they print an escape. Output that cannot
    be written is an error of one line.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if sys.stdout is None:  # closed by the caller
            sys.exit("Error: standard output is closed")
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left when it ends
            sys.exit(f"Error: {error.strerror}")


class LazyCommands(Commands):
    """A group of commands. `lazy` maps a command's name to its module and its summary. Others may be added as usual."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self.commands, *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._lazy:
            return self.commands.get(cmd_name)
        with modules_kept():
            command = getattr(importlib.import_module(self._lazy[cmd_name][0]), cmd_name.replace("-", "_"))
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not (ctx.resilient_parsing or name.startswith("-")):
            from program.words import nearest  # noqa: PLC0415 - takes a tenth of the start, for a typo alone

            meant = nearest(name, self.list_commands(ctx)).strip().capitalize()
            ctx.fail(f"No such command '{name}'. {meant}".strip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        known = [(name, command.get_short_help_str(formatter.width)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*known, *((name, summary) for name, (_, summary) in self._lazy.items())])


def output_option(*, wide: bool = False) -> Callable[[F], F]:
    """Returns the option for the form of the output: for people, with `wide` also with all columns, or for programs."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "wide", "json"] if wide else ["text", "json"]),
        default="text",
        show_default=True,
        help="For people, for people with all columns, or for programs." if wide else "For people or programs.",
    )
