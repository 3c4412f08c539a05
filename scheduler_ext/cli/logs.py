"""The flags for log lines, HAMi's among them."""

import logging
from collections.abc import Callable
from functools import wraps

import click

from program.logs import set_up_logging
from scheduler_ext.cli.options import Command, switch

log = logging.getLogger(__name__)

DEBUG_VERBOSITY = 4
"""From there on klog's lines are for debugging, by Kubernetes' convention."""

_INSTEAD = {
    "profiling": "Go's profiler has nothing to look at here; use py-spy, or the histograms of /metrics",
    **dict.fromkeys(
        ("logtostderr", "alsologtostderr", "stderrthreshold", "log_dir", "log_file", "log_file_max_size"),
        "log lines go to standard error; redirect that",
    ),
    **dict.fromkeys(("vmodule", "log_backtrace_at"), "use --log-level debug"),
    **dict.fromkeys(("add_dir_header", "skip_headers", "skip_log_headers", "one_output"), "use --log-format"),
}
"""Flags of HAMi's that change nothing, and what to use instead."""
_SWITCHES = frozenset(
    {"profiling", "logtostderr", "alsologtostderr", "add_dir_header", "skip_headers", "skip_log_headers", "one_output"}
)


def _read_verbosity(_: click.Context, __: click.Parameter, text: str) -> int:
    """A number, also as Go's flags are written: `-v=4`."""
    text = text.removeprefix("=")
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is not a whole number from 0")
    return int(text)


def log_options(command: Command) -> Command:
    """Adds the flags, and configures logging by them before the command runs; it does not get them."""

    @wraps(command)
    def with_logs(*, log_format: str, log_level: str, debug: bool, verbosity: int, **others: object) -> None:
        without_effect = {name: others.pop(name) for name in _INSTEAD}
        set_up_logging("scheduler_ext", log_format, "debug" if debug or verbosity >= DEBUG_VERBOSITY else log_level)
        for name, value in without_effect.items():
            if value:
                log.warning("--%s changes nothing: %s", name, _INSTEAD[name])
        command(**others)

    wrapped: Command = with_logs
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _without_effect(name: str) -> Callable[[Command], Command]:
    if name in _SWITCHES:
        return switch(f"--{name}", name, hidden=True)
    return click.option(f"--{name}", name, hidden=True)


_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Log lines for people or for programs.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="The least severe lines that are logged.",
    ),
    switch("--debug", show_default=True, help="As --log-level debug."),
    click.option(
        "-v",
        "--v",
        "verbosity",
        callback=_read_verbosity,
        default="0",
        show_default=True,
        help=f"HAMi's verbosity: from {DEBUG_VERBOSITY} on as --log-level debug.",
    ),
    *map(_without_effect, _INSTEAD),
)
