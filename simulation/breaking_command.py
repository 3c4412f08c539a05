"""Breaks and mends GPUs of the cluster that `topogpu-sim up` runs: it rewrites the machine of a node (edge)."""

import fcntl
import json
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import click

from program.words import nearest
from simulation.breaking import CannotBreak
from simulation.cluster import KUBECONFIG, MACHINE_FILE
from simulation.nvml.machine_file import replace_machine_file

_LONGEST_SECONDS = 5.0
_HOW = "run `topogpu-sim up`, and export the KUBECONFIG that it prints"


def change_machine(kubeconfig: str, node: str, change: Callable[[str], str]) -> None:
    """`kubeconfig` is that of the running cluster, as the variable KUBECONFIG has it. Raises click.ClickException."""
    folder = _machine_folder(kubeconfig, node)
    file = folder / MACHINE_FILE
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            replace_machine_file(file, change(file.read_text(encoding="utf-8")))
    except CannotBreak as error:
        raise click.ClickException(f"{node}: {error}") from error
    except OSError as error:
        raise click.ClickException(f"{file} cannot be changed: {error.strerror or error}") from error


def _machine_folder(kubeconfig: str, node: str) -> Path:
    if not kubeconfig:
        raise click.ClickException(f"KUBECONFIG is not set; {_HOW}")
    for file in map(Path, kubeconfig.split(":")):
        nodes = {found.parent.name: found.parent for found in sorted(file.parent.glob(f"*/{MACHINE_FILE}"))}
        if file.name != KUBECONFIG or not nodes:
            continue
        if node not in nodes:
            raise click.ClickException(f"there is no node {node}; {nearest(node, nodes)}Nodes are {', '.join(nodes)}")
        _check_running(file)
        return nodes[node]
    raise click.ClickException(f"{kubeconfig} is not the kubeconfig of a running simulation; {_HOW}")


def _check_running(kubeconfig: Path) -> None:
    """The folder of a simulation that was killed is still there. Raises click.ClickException."""
    try:
        address = urlsplit(json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
        socket.create_connection((address.hostname or "", address.port or 0), timeout=_LONGEST_SECONDS).close()
    except (OSError, ValueError, LookupError) as error:
        raise click.ClickException(f"the simulation of {kubeconfig} does not run any more; {_HOW}") from error
