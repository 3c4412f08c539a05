"""The hook by which a container gets the driver's limits of GPU memory before its first instruction.

The container runtime runs it on the host once the container's control group exists, and does not create the container
if it fails (createRuntime in config.md of opencontainers/runtime-spec). A node has no more for it than a shell, so it
hands the runtime's state of the container to the daemon through one named pipe, and takes the answer from another.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from proto.devices import DeviceUUID

ASK, ANSWER = "ask", "answer"
"""The names of the pipes in the container's folder."""
GRANTED = "ok"
"""The answer with which a container starts. Any other is the reason why it does not."""
END = "."
"""The line behind the state and the hook's process id, with which the answer begins: a hook that was ended leaves its
answer in the pipe, and the next hook must not take it for its own.
"""
_SECONDS = 10
"""Seconds after which the runtime ends the hook, and the start: the daemon has ended, or the driver hangs."""
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCRIPT = f"""cd "$1" && {{ cat; echo; echo $$; echo {END}; }} > {ASK} &&
while read -r hook answer && test "$hook" != $$; do :; done < {ANSWER}
test "$hook $answer" = "$$ {GRANTED}" && exit 0
echo "${{answer:-the device plugin of this node ended before it set the limits of GPU memory}}" >&2
exit 1
"""
_NVIDIA = "apply-cuda-memory-limits"
"""The hook of NVIDIA's container toolkit since 1.20.1. It sets one pair of limits, from two variables of the container,
for the GPU that follows `--gpu-id`.
"""


def limit_hook(folder: str) -> Mapping[str, Any]:
    """Returns the hook, as CDI writes it, of the container with this folder on the host."""
    return {
        "hookName": "createRuntime",
        "path": "/bin/sh",
        "args": ["sh", "-c", _SCRIPT, "topogpu-limits", folder],
        "env": [_PATH],
        "timeout": _SECONDS,
    }


def by_nvidia(spec: Mapping[str, Any], gpus: Sequence[DeviceUUID]) -> bool:
    """Returns whether a spec of one device has NVIDIA's hook for each of these GPUs."""
    found: set[str] = set()
    for hook in filter(_is_nvidias, _hooks(spec)):
        words = [str(word) for word in hook["args"]]
        found |= {word.removeprefix("--gpu-id=") for word in words if word.startswith("--gpu-id=")}
        found |= {after for word, after in pairwise(words) if word == "--gpu-id"}
    return found.issuperset(gpus)


def without_limit_hook(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a spec of one device without our hook."""
    return _with_hooks(spec, [hook for hook in _hooks(spec) if _SCRIPT not in hook.get("args", ())])


def without_nvidias_hook(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a spec of one device without NVIDIA's hook: the container's image may have its variables."""
    return _with_hooks(spec, [hook for hook in _hooks(spec) if not _is_nvidias(hook)])


def _is_nvidias(hook: Mapping[str, Any]) -> bool:
    return _NVIDIA in hook.get("args", ())


def _with_hooks(spec: Mapping[str, Any], hooks: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    (device,) = spec["devices"]
    edits = {name: value for name, value in device["containerEdits"].items() if name != "hooks"}
    return {**spec, "devices": [{**device, "containerEdits": edits | ({"hooks": hooks} if hooks else {})}]}


def _hooks(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    (device,) = spec["devices"]
    hooks: list[Mapping[str, Any]] = device["containerEdits"].get("hooks", [])
    return hooks
