"""The help of every command is quick: it imports no HTTP library, gRPC, Kubernetes client or NVML."""

import subprocess
import sys

import pytest

SLOW = ("aiohttp", "grpc", "kubernetes", "prometheus_client", "psutil", "pynvml", "rich")
PROGRAMS = {
    "deviceplugin": ("run", "topo", "install-hami-core", "doctor", "allocations", "uninstall-node", "devices"),
    "scheduler_ext": ("serve", "decide", "explain"),
    "simulation": ("demo", "up", "break", "mend", "machines", "plan"),
}
COMMANDS = [(program, command) for program, commands in PROGRAMS.items() for command in ("", *commands)]
MEASURED = f"""
import sys
from importlib import import_module
main = import_module(sys.argv[1] + ".cli").main
try:
    main([*sys.argv[2].split(), "--help"])
except SystemExit as end:
    assert not end.code
print("imported", *sorted(sys.modules.keys() & set({SLOW!r})), file=sys.stderr)
"""
MAY = {("deviceplugin", "topo"): {"rich", "psutil", "pynvml"}, ("deviceplugin", "devices"): {"rich", "pynvml"}}
"""They read a machine, and start in 0.2 s all the same."""


@pytest.mark.parametrize(("program", "command"), COMMANDS, ids=" ".join)
def test_the_help_of_a_command_imports_little(program: str, command: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", MEASURED, program, command], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("Usage: ")
    assert set(shown.stderr.split()[1:]) <= MAY.get((program, command), set())
