"""Finds the pod and container of a process in the text of /proc/<pid>/cgroup.

Forms: kubelet's cgroup drivers (pkg/kubelet/cm/cgroup_manager_linux.go of kubernetes/kubernetes: `pod<uid>` under
cgroupfs, `…-pod<uid with underscores>.slice` under systemd) and the leaf names of containerd, CRI-O and docker.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST_TEXT = 64 * 1024
"""The most bytes that are read of the cgroup file."""

_POD = re.compile(
    r"(?:^|-)pod(?P<uid>[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)
_CONTAINER = re.compile(r"(?:cri-containerd-|crio-|docker-)?(?P<id>[0-9a-f]{64})(?:\.scope)?$")


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    pod_uid: str
    container_id: str
    """64 hexadecimal digits, without the runtime's prefix."""


def pod_of(folder: str) -> str:
    """Returns the UID of the pod whose cgroup has this name; empty for any other."""
    found = _POD.search(folder)
    return found["uid"].replace("_", "-") if found else ""


def container_of(folder: str) -> str:
    """Returns the id of the container whose cgroup has this name; empty for any other."""
    found = _CONTAINER.match(folder)
    return found["id"] if found else ""


def owner_of(text: str) -> CgroupOwner | None:
    """Returns the pod's container that the process runs in; None for a process of the host."""
    owners = (_owner(path) for path in _paths(text))
    return next((owner for owner in owners if owner is not None), None)


def _paths(text: str) -> Iterator[str]:
    """Yields the third field of `hierarchy:controllers:path`; in version 2 the first is 0, the second empty."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        yield path


def _owner(path: str) -> CgroupOwner | None:
    """Returns the first container below the first pod: whatever lies deeper was made inside that container.

    With kubelet on systemd and containerd on cgroupfs the two are joined: `…-pod<uid>.slice:cri-containerd:<id>`.
    """
    pod = ""
    for part in re.split("[/:]", path):
        if pod and (container := _CONTAINER.match(part)):
            return CgroupOwner(pod, container["id"])
        if not pod and (found := _POD.search(part)):
            pod = found["uid"].replace("_", "-")
    return None
