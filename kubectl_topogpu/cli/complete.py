"""`kubectl_complete-topogpu`: kubectl runs it to complete `kubectl topogpu …`.

Source: docs of kubectl's plugins, "Using the command line completion": the words so far are arguments, the last one is
the word to complete; a choice for each line, and at last a directive of the library cobra.
"""

import sys

import click
from click.shell_completion import ShellComplete

from kubectl_topogpu.cli import main as commands

_FILES, _NO_FILES = 0, 4
"""True if the shell may offer files."""


def choices(words: list[str]) -> list[str]:
    """Returns the lines to print."""
    *before, incomplete = words or [""]
    found = ShellComplete(commands, {}, "kubectl topogpu", "").get_completions(before, incomplete)
    if any(item.type in ("file", "dir") for item in found):
        return [f":{_FILES}"]
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in found]
    return [*(" ".join(line.splitlines()) for line in lines), f":{_NO_FILES}"]


def main() -> None:
    for line in choices(sys.argv[1:]):
        click.echo(line)
