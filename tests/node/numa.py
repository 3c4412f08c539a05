"""NUMA nodes for a kubelet whose host has one: the files of /sys that it reads, and a runc that leaves out their CPUs.

Kubelet learns its CPUs from two places alone: /sys/devices/system/node, and the list of online CPUs.
Source: utils/sysinfo and utils/sysfs of google/cadvisor.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = "numa"
"""In the machine's folder; process 1 of the machine mounts what is in it over /sys."""
ONLINE = "numa-online"
_MIB = 8192

_RUNC = """#!{python} -SE
# The host lacks most of the CPUs that kubelet gives to containers, so they cannot be bound to them.
import json, os, sys
words = sys.argv[1:]
if "update" in words:
    sys.exit()
if "--bundle" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    spec["linux"].get("resources", {{}}).get("cpu", {{}}).pop("cpus", None)
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv("{runc}", ["{runc}", *words])
"""


def show_numa(folder: Path, zones: Mapping[int, Sequence[int]]) -> None:
    """Writes the files for these CPUs of NUMA nodes: kubelet's, and those in the daemon's /sys."""
    own = folder / FOLDER
    shutil.rmtree(own, ignore_errors=True)
    for zone, cpus in zones.items():
        node = own / f"node{zone}"
        for cpu in cpus:
            topology = node / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "core_id").write_text(f"{cpu}\n")
            (topology / "physical_package_id").write_text(f"{zone}\n")
        (node / "meminfo").write_text(f"Node {zone} MemTotal:       {_MIB * 1024} kB\n")
        (node / "distance").write_text(" ".join("10" if other == zone else "20" for other in zones) + "\n")
        (node / "hugepages").mkdir()
        seen = folder / "sys/devices/system/node" / f"node{zone}"
        seen.mkdir(parents=True, exist_ok=True)
        (seen / "cpulist").write_text(",".join(map(str, cpus)) + "\n")
    (folder / ONLINE).write_text(",".join(str(cpu) for cpus in zones.values() for cpu in cpus) + "\n")


def hide_numa(folder: Path) -> None:
    """Removes kubelet's files: it finds those of the host again."""
    shutil.rmtree(folder / FOLDER)
    (folder / ONLINE).unlink()


def write_runc(folder: Path, runc: str) -> Path:
    written = folder / "runc-without-cpus"
    written.write_text(_RUNC.format(python=sys.executable, runc=runc))
    written.chmod(0o755)
    return written
