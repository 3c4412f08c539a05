"""Reads the text file that a command names (edge)."""

import click

_LARGEST_TEXT = 16 * 1024 * 1024


def read_text(path: str) -> str:
    """Reads the file, or standard input for `-`. Raises click.ClickException if it is not text."""
    name = "standard input" if path == "-" else path
    try:
        with click.open_file(path, "rb") as stream:
            raw: bytes = stream.read(_LARGEST_TEXT + 1)
    except OSError as error:
        raise click.ClickException(f"cannot read {name}: {error.strerror or error}") from error
    if len(raw) > _LARGEST_TEXT:
        raise click.ClickException(f"{name} is larger than {_LARGEST_TEXT // 2**20} MiB, too large for a text")
    if b"\0" in raw:
        raise click.ClickException(f"{name} is not text: it holds a zero byte")
    return raw.decode("utf-8", errors="replace")
