"""The folder on the host of a container that the driver limits: the pipes of its hook, and its limits (edge).

It stays as long as its pod, so a daemon that starts finds which containers the driver limits, and to what.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from deviceplugin.container.atomic_file import write_atomically
from deviceplugin.container.container_folders import is_of_container, make_fresh, remove_folder, split_folder
from deviceplugin.container.edits import ContainerFacts
from deviceplugin.container.limit_hook import ANSWER, ASK
from proto.decoding import decoded
from proto.devices import DeviceUUID

_LIMITS = "limits.json"
_OWNERS = 0o700


def limit_folder(parent: str, container: ContainerFacts) -> str:
    return f"{parent}/{container.pod_uid}_{container.name}"


def make_limit_folder(path: str, limits_mib: Mapping[DeviceUUID, int]) -> None:
    """Makes the folder new: a hook of an earlier start finds neither its pipes nor their content. Raises OSError."""
    make_fresh(path, mode=_OWNERS)
    for name in (ASK, ANSWER):
        os.mkfifo(f"{path}/{name}", 0o600)
    write_limits(path, limits_mib)


def remove_limit_folder(path: str) -> None:
    """Removes the folder, if there is one. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        remove_folder(path)


def write_limits(path: str, limits_mib: Mapping[DeviceUUID, int]) -> None:
    """Raises OSError."""
    write_atomically(Path(path, _LIMITS), msgspec.json.encode(limits_mib), mode=0o600)


def read_limits(parent: str) -> Iterator[tuple[str, str, Mapping[DeviceUUID, int]]]:
    """Yields pod UID, container and limits of each folder; none of those that cannot be read."""
    for folder in sorted(Path(parent).glob("*_*")):
        if not is_of_container(folder.name):
            continue
        try:
            limits = decoded((folder / _LIMITS).read_bytes(), dict[str, int])
        except (OSError, msgspec.MsgspecError):
            continue
        yield *split_folder(folder.name), {DeviceUUID(uuid): mib for uuid, mib in limits.items()}
