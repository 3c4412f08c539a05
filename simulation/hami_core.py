"""A placeholder for HAMi-core: installed as the real library is, so that nodes hold containers to parts of GPUs.

It is the header of a shared object and nothing else; no program can load it, and the loader then goes on without.
"""

import os
import struct
import tempfile
from pathlib import Path

from deviceplugin.container.hami_core_install import MACHINES, Installation, install_hami_core

_HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
"""Elf64_Ehdr of the ELF specification."""


def placeholder(machine: str) -> bytes:
    """Returns a shared object without content, for `machine` as `uname -m` prints it."""
    shared_object = 3
    sizes = (_HEADER.size, 0, 0, 0, 0, 0)
    return _HEADER.pack(b"\x7fELF", 2, 1, 1, 0, shared_object, MACHINES[machine], 1, 0, 0, 0, 0, *sizes)


def install_placeholder(root: Path) -> Installation:
    """Installs the library below `<root>/vgpu`, by our installer."""
    machine = os.uname().machine
    with tempfile.TemporaryDirectory() as source:
        Path(source, "libvgpu.so").write_bytes(placeholder(machine))
        return install_hami_core(Path(source), root, machine=machine)
