"""Process 1 of a machine: `python machine_init.py FOLDER [PLACE...]` in namespaces of its own, until its input ends.

What is written below each PLACE stays on the machine.

Its parent's death ends that too, and with process 1 the kernel ends every process and mount of the machine.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_SYSCTLS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
"""Kubelet sets them for the whole kernel, so it is shown files that already say what it wants."""


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def _mount_all(folder: Path, places: Sequence[str]) -> None:
    # A kubelet folder for this machine alone, on hosts without one too, and the rest of /var/lib as it is.
    for place in ("/var/lib", *places):
        upper, work = (folder / name / place.strip("/").replace("/", "-") for name in ("upper", "work"))
        upper.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={work}", place)
    Path("/var/lib/kubelet").mkdir(exist_ok=True)
    for kept, place in (("kubelet", "/var/lib/kubelet"), ("log", "/var/log"), ("run", "/run")):
        _mount("--bind", folder / kept, place)
    for files, place in (("numa", "/sys/devices/system/node"), ("numa-online", "/sys/devices/system/cpu/online")):
        if (folder / files).exists():
            _mount("--bind", folder / files, place)
    for name, value in _SYSCTLS.items():
        shown = folder / name.replace("/", "-")
        shown.write_text(value)
        _mount("--bind", shown, f"/proc/sys/{name}")


def _reap(number: int, frame: FrameType | None) -> None:
    """Of the orphans that every process 1 gets."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    _mount_all(Path(sys.argv[1]), sys.argv[2:])
    signal.signal(signal.SIGCHLD, _reap)
    print("up", flush=True)
    sys.stdin.buffer.read()
