"""Lists the daemon's folders and removes files there (edge)."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from deviceplugin.container.folder_removal import remove_folder
from deviceplugin.doctor.kubelet import SocketState
from deviceplugin.doctor.node_facts import socket_facts
from deviceplugin.removal.plan import Folders, Found, Ours, is_plugin_socket


def find(folders: Folders, ours: Ours) -> Found:
    """Raises OSError for a folder that is there and cannot be read."""
    names = {folder: tuple(os.listdir(folder)) for folder in set(astuple(folders)) if os.path.isdir(folder)}
    sockets = (f"{folders.plugins}/{name}" for name in names.get(folders.plugins, ()) if is_plugin_socket(name, ours))
    served = tuple(path for path in sockets if socket_facts(path).state is SocketState.CONNECTS)
    return Found(names=names, served=served)


def remove(paths: Sequence[str], emptied: str) -> Mapping[str, str]:
    """Returns a sentence for each path that is still there. The folder `emptied` goes too, if nothing is left in it."""
    kept = {}
    for path in paths:
        try:
            _remove(path)
        except OSError as error:
            kept[path] = f"{error.filename or path} cannot be removed: {error.strerror or error}."
    with suppress(OSError):
        Path(emptied).rmdir()
    return kept


def _remove(path: str) -> None:
    """Never follows a symbolic link: tenants write in some of these folders. What is gone already is fine."""
    with suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            remove_folder(path)
        else:
            os.unlink(path)
