"""The output of commands: a terminal that can show colour, or a pipe."""

import os
import sys

import msgspec
from rich.console import Console, RenderableType

_PIPE_WIDTH = 1000


def print_text(content: RenderableType) -> None:
    """Returns the console. Rows are not wrapped in a pipe, where a program or a pager reads them."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=_PIPE_WIDTH, no_color="FORCE_COLOR" not in os.environ)
    console.print(content, soft_wrap=not console.is_terminal)


def print_json(content: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n")
