"""A driver whose answers are at times errors or garbage: nothing of it ends the daemon, and no GPU is there twice."""

import ctypes
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from deviceplugin.configuration.table import TABLE
from deviceplugin.gpus import gpu_reader
from deviceplugin.inventory import GpusUnavailable, Inventory
from deviceplugin.machine.discovery import MigStrategy
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.signals import fallen_off, poll_health
from deviceplugin.nvml.usage import UsageReader
from proto.annotations.node_register import decode_register, encode_register
from simulation.machines import load
from simulation.machines.description import MigDevice
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, write_machine_file

pytestmark = pytest.mark.needs_compiler

DGX = load("dgxa100-8x-a100-40g")
DIVIDED = replace(
    DGX.gpus[1], mig="enabled", mig_devices=(MigDevice("1g.5gb", 4864, 7, 0), MigDevice("1g.5gb", 4864, 8, 0))
)
MACHINE = replace(DGX, gpus=(DGX.gpus[0], DIVIDED, DGX.gpus[2]))
CODES = (1, 2, 3, 4, 6, 7, 9, 10, 13, 15, 16, 25, 999, 12345, -1)


class Liar:
    """The fake library; of its answers a part is an error, zeros, ones, a small number or anything."""

    def __init__(self, library: ctypes.CDLL, choose: random.Random, share: float) -> None:
        self._library = library
        self._choose = choose
        self._share = share

    def __getattr__(self, name: str) -> Callable[..., int]:
        answer = getattr(self._library, name)

        def call(*arguments: object) -> int:
            code: int = answer(*arguments)
            if name == "nvmlInitWithFlags" or self._choose.random() >= self._share:
                return code
            lie = self._choose.choice(("error", "zeros", "ones", "small", "anything"))
            if lie == "error":
                return self._choose.choice(CODES)
            for place in filter(None, map(_place, arguments)):
                ctypes.memmove(ctypes.addressof(place), self._lie(lie, ctypes.sizeof(place)), ctypes.sizeof(place))
            return code

        return call

    def _lie(self, lie: str, size: int) -> bytes:
        number = self._choose.choice((1, 2, 5, 100_000)).to_bytes(4, "little")
        lies = {"zeros": bytes(size), "ones": b"\xff" * size, "small": (number + bytes(size))[:size]}
        return lies.get(lie) or self._choose.randbytes(size)


def _place(argument: object) -> Any:
    """What the driver writes to, but for handles: a false one would be followed."""
    place = getattr(argument, "_obj", argument)
    return place if isinstance(place, ctypes.Array | ctypes.Structure | ctypes._SimpleCData) else None


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_driver_answers_no_reading_ends_the_daemon(
    strategy: MigStrategy, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    write_machine_file(MACHINE, tmp_path / "machine", "")
    monkeypatch.setenv(MACHINE_FILE_VARIABLE, str(tmp_path / "machine"))
    liar = Liar(ctypes.CDLL(str(build_library())), choose, choose.choice((0.001, 0.01, 0.05, 0.3)))
    monkeypatch.setattr(pynvml, "nvmlLib", liar)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    nvml, usage = Nvml(sysfs_root=Path("/nonexistent")), UsageReader()
    read = gpu_reader(nvml, TABLE.filled(node_name="node", mig_strategy=strategy))
    for _ in range(3):
        with suppress(GpusUnavailable, NvmlUnavailable):
            _check(read())
            gpus = sorted(nvml.handles())
            poll_health(nvml.calls(), gpus)
            fallen_off(nvml.calls(), gpus)
            usage.read(nvml.calls(), nvml.handles())
    nvml.close()


def _check(inventory: Inventory) -> None:
    devices = [*inventory.devices, *(each for found in inventory.instances.values() for each in found)]
    assert len({device.uuid for device in devices}) == len(devices)
    assert decode_register(encode_register(inventory.devices)) == inventory.devices
