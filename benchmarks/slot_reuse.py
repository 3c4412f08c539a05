"""Passes replicas from pod to pod, against the cache of CDI specs in containerd and CRI-O.

The specs are written as the daemon writes them. The runtimes' own library (Go) reads them behind inotify. It is asked
directly after each write, faster than any kubelet. `--held` containers have specs there in the meantime. One run
compares both ways: a name for each Allocate, and, as in earlier releases, one name for the same replicas.

`python -m benchmarks.slot_reuse --uses 10000`
"""

import argparse
import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from deviceplugin.allocation.slot_files import SlotFiles
from deviceplugin.allocation.slot_specs import SlotSpecs
from deviceplugin.allocation.slots import Start, applied, qualified
from deviceplugin.container.edits import ContainerEdits, Mount

_SOURCE = Path(__file__).parents[1] / "tests" / "node" / "tools" / "cdi"
_NEVER_OVER = 1e9
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""As /var/run is."""


class Runtime:
    """The library, as a process."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            [program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def sees(self, slot: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{qualified(slot)}\n")
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def edits(gpu: str) -> ContainerEdits:
    """As large as those of a container with HAMi-core."""
    paths = ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu", "/tmp/vgpulock", "/etc/ld.so.preload")
    limits = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4000m", "CUDA_DEVICE_SM_LIMIT": "30", "CUDA_DEVICE_SM_LIMIT_0": "30"}
    return applied(
        ContainerEdits(
            env={**limits, "NVIDIA_VISIBLE_DEVICES": gpu},
            mounts=tuple(Mount(container_path=path, host_path=path, read_only=True) for path in paths),
        )
    )


async def run(program: Path, uses: int, held: int, *, named_anew: bool) -> str:
    folder = Path(tempfile.mkdtemp(dir=_IN_MEMORY))
    files = SlotFiles(str(folder), others=())
    clock = [0.0]
    specs = SlotSpecs(files, dict, monotonic=lambda: clock[0], pause_seconds=0)
    stays = {f"held{n}": files.spec(f"held{n}", edits("GPU-held")) for n in range(held)}
    await specs.put(stays, {slot: _started(_NEVER_OVER) for slot in stays})
    runtime = Runtime(program, folder)
    seen = {"own": 0, "another's": 0, "none yet": 0}
    waits: list[float] = []
    try:
        for use in range(uses):
            gpu, slot = f"GPU-{use}", f"slot{use}" if named_anew else f"slot{use % 80}"
            # With a name per Allocate, the previous holder has been created: its spec goes with the next write.
            clock[0] += 200.0
            start = _started(clock[0] if named_anew else _NEVER_OVER)
            await specs.put({slot: files.spec(slot, edits(gpu))}, {slot: start})
            began, first = time.perf_counter(), runtime.sees(slot)
            seen["own" if first == gpu else "none yet" if first == "-" else "another's"] += 1
            while first != gpu:
                first = runtime.sees(slot)
            waits.append(time.perf_counter() - began)
    finally:
        runtime.close()
        shutil.rmtree(folder)
    name = "a name for each Allocate" if named_anew else "one name for the same replicas"
    late = statistics.quantiles(waits, n=100)
    figures = "  ".join(f"{key} {number:>6}" for key, number in seen.items())
    return (
        f"{name:<31} {held:>4} held  {figures}  until seen p50 {late[49] * 1e3:6.2f} ms  p99 {late[98] * 1e3:6.2f} ms"
    )


def _started(since: float) -> Start:
    return Start(pod_uid="u", container="c", known_id="", since=since)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uses", type=int, default=10_000, help="Times that the replicas pass on.")
    parser.add_argument("--held", type=int, default=160, help="Specs that exist meanwhile, in the second part.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "cdi")
        subprocess.run(["go", "build", "-o", program, "."], cwd=_SOURCE, check=True)
        print(asyncio.run(run(program, given.uses, 0, named_anew=True)), flush=True)
        for named_anew in (True, False):
            print(asyncio.run(run(program, given.uses // 20, given.held, named_anew=named_anew)), flush=True)


if __name__ == "__main__":
    main()
