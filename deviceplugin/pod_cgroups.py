"""Finds in the host's control groups the pods in which processes run, independently of kubelet and the API server
(edge).

Kubelet keeps one for each pod (`pod<uid>`, or `…-pod<uid>.slice`) until the pod's containers have ended.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from deviceplugin.usage.cgroups import container_of, pod_of

_DEEPEST = 2
"""Below the root of the hierarchy, for a `--cgroup-root` of kubelet's."""
_HIERARCHIES = ("pids", "memory", "cpu", "systemd")
"""Hierarchies of version 1; any one of them is enough."""
_HOSTS = frozenset({"system.slice", "user.slice", "init.scope"})
_CLASSES = ("burstable", "besteffort")
_MOST_FOLDERS = 10_000
"""Looked at for one answer; what has more is taken to have processes."""


class PodCgroups:
    """Below `root`, where the host's hierarchies are seen."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kubelet: Path | None = None

    def populated(self, known: Collection[str]) -> frozenset[str] | None:
        """Returns the UIDs of all pods in which a process runs. None until one of the `known` pods was found, because
        another kubelet's folders, or none, do not describe this node.
        """
        if self._kubelet is not None:
            return _populated(self._kubelet)
        first = next((self._root / name for name in _HIERARCHIES if (self._root / name).is_dir()), self._root)
        for folder in _kubelets(first, _DEEPEST):
            found = _populated(folder)
            if not found.isdisjoint(known):
                self._kubelet = folder
                return found
        return None


def is_version_2(root: Path) -> bool:
    """Returns whether the host has control groups of version 2 alone. Blocks."""
    return (root / "cgroup.controllers").is_file()


def kubelets_group(root: Path) -> Path | None:
    """Returns a group of version 2 below which kubelet keeps its pods; None where there is none. Blocks."""
    return next(_kubelets(root, _DEEPEST), None)


def container_group(root: Path, pod_uid: str, container_id: str) -> Path | None:
    """Returns the group of version 2 in which the container's processes are; None where it has none. Blocks.

    crun keeps them in the group `container` below the container's own.
    """
    for kubelet in _kubelets(root, _DEEPEST):
        for pod in (folder for uid, folder in _pods(kubelet) if uid == pod_uid):
            for folder in _folders(pod):
                if container_of(folder.name) == container_id:
                    inner = folder / "container"
                    return inner if not _is_populated(folder) and _is_populated(inner) else folder
    return None


def _populated(kubelet: Path) -> frozenset[str]:
    return frozenset(uid for uid, folder in _pods(kubelet) if _has_processes(folder))


def _pods(kubelet: Path) -> Iterator[tuple[str, Path]]:
    """Yields UID and folder of each pod, whatever its class of quality of service."""
    for folder in _folders(kubelet):
        uid = pod_of(folder.name)
        if uid:
            yield uid, folder
        elif folder.name.removesuffix(".slice").endswith(_CLASSES):
            yield from ((pod_of(each.name), each) for each in _folders(folder) if pod_of(each.name))


def _kubelets(folder: Path, depth: int) -> Iterator[Path]:
    for each in _folders(folder):
        if "kubepods" in each.name:
            yield each
        elif depth > 1 and each.name not in _HOSTS:
            yield from _kubelets(each, depth - 1)


def _folders(folder: Path) -> list[Path]:
    """Returns the folders inside; none of a folder that is gone or not ours to see."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _has_processes(folder: Path) -> bool:
    try:
        return "populated 1" in (folder / "cgroup.events").read_text()
    except OSError:
        pass
    pending, left = [folder], _MOST_FOLDERS
    while pending:
        each = pending.pop()
        left -= 1
        if left < 0 or _is_populated(each):
            return True
        pending += _folders(each)
    return False


def _is_populated(folder: Path) -> bool:
    """Returns whether a process is in the group (version 1); none is in one that is gone meanwhile."""
    try:
        with (folder / "cgroup.procs").open("rb") as file:
            return bool(file.read(1))
    except OSError:
        return False
