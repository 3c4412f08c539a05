"""Containers on a node with nothing of NVIDIA's but a driver below some folder: plain containerd and runc."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proto.devices import DeviceShare
from simulation.nvml.build import build_library
from tests.node import image
from tests.node.pods import SEVERAL, Pods, container, decided, decided_for, pod
from tests.node.real_node import RealNode
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
BOTH = pytest.mark.parametrize("allocation", ["slots", "immediate"])
VERSION = "550.90.07"
"""What the fake NVML says."""
_TRIPLE = f"{os.uname().machine}-linux-gnu"
_CUDA = """
#include <dlfcn.h>
int answer(void) {
    int (*inner)(void) = dlsym(dlopen("libnvidia-ptxjitcompiler.so.1", RTLD_NOW), "answer");
    return inner ? 100 + inner() : -1;
}
"""
_COMPILER = "int answer(void) { return 23; }"


def install(root: Path, version: str = VERSION) -> None:
    """Two real libraries, the first of which loads the other by its soname, and a program."""
    libraries = root / "usr/lib" / _TRIPLE
    libraries.mkdir(parents=True)
    for stem, source in (("libcuda", _CUDA), ("libnvidia-ptxjitcompiler", _COMPILER)):
        file = libraries / f"{stem}.so.{version}"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{stem}.so.1", "-o", str(file)]
        subprocess.run(command, input=source, text=True, check=True)
        (libraries / f"{stem}.so.1").symlink_to(file.name)
    shutil.copy(build_library(), libraries / f"libnvidia-ml.so.{version}")
    (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")
    program = root / "usr/bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)


@pytest.fixture
async def driver(machine: RealNode) -> AsyncIterator[Path]:
    """The folder above a driver's."""
    install(machine.dev_root)
    yield machine.dev_root
    for folder in _places(machine.dev_root):
        shutil.rmtree(folder, ignore_errors=True)


def _places(root: Path) -> tuple[Path, Path]:
    """Where the driver's files are, and where a test puts them out of sight."""
    return root / "usr", root.with_name("gone")


def finder(gpus: int = 1) -> dict[str, Any]:
    return container(gpus=gpus, gpumem=1000) | {
        "command": [image.FINDER, "libcuda.so.1", "libcuda.so", f"libcuda.so.{VERSION}"]
    }


async def serve(pods: Pods, driver: Path, allocation: str, *flags: str) -> None:
    own = ("--nvml-library", "", "--driver-root", str(driver), "--device-list-strategy", "driver-files")
    await pods.serve(*own, "--allocation", allocation, *flags)


@BOTH
async def test_a_container_finds_the_driver_by_soname_and_sees_its_own_gpus_alone(
    driver: Path, scheduled: Pods, allocation: str
) -> None:
    await serve(scheduled, driver, allocation, *SEVERAL)
    await scheduled.add(pod("one", finder()), pod("two", finder(2)), pod("none", container(gpus=0)))
    started = await scheduled.started("one", "two", "none")
    for name in ("one", "two"):
        (start,) = await scheduled.starts(name)
        assert start.found == {
            "libcuda.so.1": "123",
            "libcuda.so": "123",
            f"libcuda.so.{VERSION}": "123",
            "/usr/bin/nvidia-smi": "runs",
        }
        assert start.devices == decided_for(scheduled.node, decided(started[name], "main"))["devices"]
        assert start.env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert start.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
        assert "LD_LIBRARY_PATH" not in start.env
        mounted = [words for place, words in start.mounts.items() if "libcuda" in place]
        assert mounted
        assert all(words.split()[1].startswith("ro") for words in mounted)
    (without,) = await scheduled.starts("none")
    assert not [place for place in without.mounts if "libcuda" in place]


@BOTH
async def test_a_container_does_not_start_again_with_files_of_a_driver_that_is_gone(
    driver: Path, pods: Pods, allocation: str
) -> None:
    await serve(pods, driver, allocation, "--read-seconds", "1")
    ends = finder() | {"command": [image.PROGRAM, "show", "0"]}
    share = DeviceShare(uuid=pods.node.uuid(0), memory_mib=1000, cores=0)
    await pods.add_bound(pod("again", ends), ((share,),))
    await pods.starts("again")
    files, gone = _places(driver)
    files.rename(gone)
    await pods.offered(0)

    async def status() -> dict[str, Any]:
        (one,) = (await pods.get("again"))["status"]["containerStatuses"]
        return dict(one)

    async def waits() -> bool:
        return str((await status())["state"].get("waiting", {}).get("reason", "")).startswith("CreateContainer")

    await until(waits)
    # Not from the logs of earlier starts: kubelet removes them once a later attempt has failed.
    number = (await status())["restartCount"]
    assert not files.exists()
    await asyncio.to_thread(gone.rename, files)
    await pods.offered(80)
    await pods.starts("again", number=number + 1)
