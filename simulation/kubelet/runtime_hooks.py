"""Runs the hooks of a container as its runtime does: once the control group is there, before the first instruction.

Source: runtime.md and config.md of opencontainers/runtime-spec, for the state on standard input and failures.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from simulation.kubelet.container import CdiError, CdiHook


async def run_hooks(hooks: Sequence[CdiHook], kubepods: Path, pod_uid: str, container_id: str) -> None:
    """Makes the container's control group below `kubepods` and runs its hooks. Raises CdiError if one fails, and then
    the container is not created.
    """
    group = kubepods / f"pod{pod_uid}" / container_id
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("1\n")
    state = {"ociVersion": "1.2.0", "id": container_id, "status": "creating", "pid": 1, "bundle": str(group)}
    for number, hook in enumerate(hooks):
        running = await asyncio.create_subprocess_exec(
            hook.path,
            *hook.args[1:],
            env=dict(variable.split("=", 1) for variable in hook.env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(hook.timeout):
                _, said = await running.communicate(json.dumps(state).encode())
        except TimeoutError:
            running.kill()
            await running.wait()
            said = b"context deadline exceeded"
        if running.returncode:
            remove_group(kubepods, pod_uid, container_id)
            problem = said.decode(errors="replace").strip()
            raise CdiError(f"error running {hook.hook_name} hook #{number}: {problem}")


def remove_group(kubepods: Path, pod_uid: str, container_id: str) -> None:
    """Removes the control group of a container that has ended."""
    group = kubepods / f"pod{pod_uid}" / container_id
    (group / "cgroup.procs").unlink()
    group.rmdir()
