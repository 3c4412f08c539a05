"""Finds the host's folders: below the folder where the host is mounted, else at their own paths (edge)."""

import os
from pathlib import Path

_RUNTIME_CONFIGS = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""The configuration of NVIDIA's container runtime: of the toolkit's packages, and of the GPU Operator's toolkit."""


def seen(host_root: str, path: str) -> str:
    """Returns the host's path as this process sees it: below `host_root` if it is there, else as it is."""
    below = host_root.rstrip("/") + path
    return (below.rstrip("/") or "/") if os.path.exists(below) else path


def sysfs(host_root: str) -> Path:
    # Control groups may be mounted below a folder sys that has nothing else.
    return Path(seen(host_root, "/sys/bus/pci")).parents[1]


def proc(host_root: str) -> Path:
    return Path(seen(host_root, "/proc"))


def cgroups(host_root: str) -> Path:
    """Returns the host's control groups; the folder may be missing."""
    return Path(seen(host_root, "/sys/fs/cgroup")).resolve()


def containerd_socket(host_root: str) -> str:
    """Returns containerd's socket, which may be missing."""
    return seen(host_root, "/run/containerd/containerd.sock")


def runtime_config(host_root: str) -> str:
    """Returns the host's path of the configuration of NVIDIA's container runtime, which may be missing."""
    found = (each for each in _RUNTIME_CONFIGS if os.path.exists(seen(host_root, each)))
    return next(found, _RUNTIME_CONFIGS[0])
