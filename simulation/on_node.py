"""`python -m simulation.on_node MACHINE FOLDER`: writes what the simulated driver of a Kubernetes node answers.

NODE_NAME makes the GPUs' UUIDs the node's own. FOLDER gets the file `machine` and the tree `sys`. It runs in the init
container of the daemon's pod.
"""

import os
import sys
from pathlib import Path

from simulation import machines
from simulation.machines import MachineDescriptionError
from simulation.nvml.machine_file import write_machine_file, write_sysfs


def write_node(machine: str, folder: Path, node: str) -> str:
    """Returns a sentence about the machine. Raises MachineDescriptionError, OSError."""
    description = machines.load(machine)
    write_sysfs(description, folder / "sys")
    # The node's control groups are mounted there.
    (folder / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    write_machine_file(description, folder / "machine", node)
    return f"Node {node} simulates {description.title}: {len(description.gpus)} GPUs, none of them real."


if __name__ == "__main__":
    if len(sys.argv) != 3 or not os.environ.get("NODE_NAME"):
        raise SystemExit("Usage: NODE_NAME=NAME python -m simulation.on_node MACHINE FOLDER")
    try:
        print(write_node(sys.argv[1], Path(sys.argv[2]), os.environ["NODE_NAME"]))
    except (MachineDescriptionError, OSError) as problem:
        raise SystemExit(str(problem)) from None
