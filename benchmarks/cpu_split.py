"""Shows what the extender's CPU time is used for: it samples the program as it is shipped.

`python -m benchmarks.cpu_split FILE serve …` runs `topogpu-scheduler serve …`. The kernel signals each tick of CPU time
that the process uses, the kernel's own work for it included. The stack shows the purpose. On SIGUSR1 the counts are
written to FILE.
"""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

TICK_SECONDS = 0.001
"""Shortest tick; most kernels tick four times as slowly."""
RULES = (
    ("events", ("proto/kubernetes/events.py",)),
    ("metrics", ("scheduler_ext/metrics.py", "scheduler_ext/metric_families.py", "/prometheus_client/")),
    ("watch: decoding", ("proto/kubernetes/wire.py",)),
    ("watch: the ledger", ("scheduler_ext/apiserver.py",)),
    ("HTTP out", ("proto/kubernetes/", "/kubernetes/aio/", "/aiohttp/client", "/aiohttp/connector.py", "sslproto.py")),
    ("bind", ("scheduler_ext/binding/bind.py", "scheduler_ext/binding/node_locks.py")),
    ("filter", ("scheduler_ext/answering.py", "scheduler_ext/scheduling/")),
    ("the verbs around them", ("scheduler_ext/http_server.py", "proto/extender.py")),
    ("HTTP in", ("scheduler_ext/loopback.py", "scheduler_ext/exchange.py", "/aiohttp/")),
    ("event loop", ("/asyncio/", "selectors.py")),
)
"""The first subject with any frame of the stack counts."""
OTHER = "other"


def subject(files: list[str]) -> str:
    """`files` are those of the frames."""
    return next((name for name, marks in RULES if any(mark in file for mark in marks for file in files)), OTHER)


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def main() -> None:
    counts: Counter[str] = Counter()
    written = Path(sys.argv.pop(1))

    def tick(_: int, frame: FrameType | None) -> None:
        counts[subject(list(_files(frame)))] += 1

    def write(_: int, __: FrameType | None) -> None:
        fresh = written.with_suffix(".new")
        fresh.write_text(json.dumps(counts))
        fresh.rename(written)

    from scheduler_ext.cli import main as serve  # noqa: PLC0415 - what it loads is not counted

    signal.signal(signal.SIGPROF, tick)
    signal.signal(signal.SIGUSR1, write)
    signal.setitimer(signal.ITIMER_PROF, TICK_SECONDS, TICK_SECONDS)
    serve()


if __name__ == "__main__":
    main()
