"""Ctrl-C from the first line of each program on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LOADING = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == sys.argv[1] + ".cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
runpy.run_module(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("program", ["deviceplugin", "scheduler_ext", "kubectl_topogpu", "simulation"])
def test_a_program_ends_quietly_while_it_loads(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADING, program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_command_ends_quietly_while_it_runs(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "kubectl_topogpu", "top", "--state", str(pipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with pipe.open("wb"):  # it has begun to read
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")
