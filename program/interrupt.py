"""Ctrl-C while a program loads and runs, unless it has an answer of its own: the end, with status 130 and no traceback.

What runs before `__main__` is Python's own start: for its first hundredths of a second Python prints a traceback.
"""

import signal
import sys

STATUS = 130
"""The exit status as shells define it: 128 and the number of the signal."""


def end_quietly() -> None:
    """Call it before the imports that take long. What was begun is cleaned up as for any exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as behind nohup
        signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    sys.exit(STATUS)
