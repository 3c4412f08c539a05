"""Programs and ports of the real control plane, however its tests end; the programs themselves are not needed here."""

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.control_plane import Program, free_port
from tests.polling import until

TESTS = """
import sys, time
from pathlib import Path
from tests.cluster.control_plane import Program
print(Program(["sleep", "600"], Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def started_and_killed(log: Path) -> int:
    """The id of a program whose tests are gone."""
    with subprocess.Popen(
        [sys.executable, "-c", TESTS, str(log)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as tests:
        assert tests.stdout is not None
        program = int(tests.stdout.readline())
        assert runs(program)
        tests.kill()
    return program


async def test_a_program_ends_with_tests_that_are_killed(tmp_path: Path) -> None:
    program = started_and_killed(tmp_path / "log")
    await until(lambda: not runs(program))


def test_a_program_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    before = psutil.Process().children()
    program = Program(["sleep", "600"], tmp_path / "log")
    program.stop(signal.SIGKILL)
    assert psutil.Process().children() == before


def test_a_port_is_kept_from_everybody_who_does_not_know_its_number() -> None:
    port = free_port()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port))
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass
