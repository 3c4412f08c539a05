"""Reads this machine for `doctor`: its driver, sockets, files and ports. It changes nothing (edge)."""

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from deviceplugin.container.cdi_files import CDI_DIRECTORIES, missing_devices
from deviceplugin.container.container_folders import is_writable
from deviceplugin.container.driver_files import NoDriver
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.doctor.containers import CdiFolderFacts
from deviceplugin.doctor.driver import DriverAnswer, DriverFilesFacts, library_version, module_version
from deviceplugin.doctor.kubelet import SocketFacts, SocketState
from deviceplugin.doctor.nvidia_runtime import RuntimeFacts
from deviceplugin.host_paths import runtime_config, seen
from deviceplugin.limits.conditions import why_no_driver
from deviceplugin.limits.driver import ask_driver
from deviceplugin.machine.readings import MachineReading
from deviceplugin.nvml.calls import CallFailed
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.memory_limits import MemoryLimits
from deviceplugin.nvml.reader import Nvml
from deviceplugin.own_threads import OwnThreads
from deviceplugin.socket_names import shared_name
from proto.environment import NONE_VISIBLE, VISIBLE_DEVICES

_CONNECT_SECONDS = 2.0
_OTHER_SOCKETS = ("nvidia.sock", "nvidiaGPU*.sock")
"""The sockets of NVIDIA's plugin before 0.14, and of GKE's. Newer ones serve under `shared_name`."""


async def driver_facts(
    nvml: Nvml, proc_root: str, deadline_seconds: float
) -> tuple[DriverAnswer, MachineReading | None]:
    """Returns the driver's answer, or why there is none; it does not wait for a driver that hangs."""
    module = module_version(_text(Path(proc_root, "driver/nvidia/version")))
    try:
        async with asyncio.timeout(deadline_seconds):
            machine = await OwnThreads("nvml").call(lambda: _read(nvml))
    except TimeoutError:
        silent = f"The NVIDIA driver gave no answer within {deadline_seconds:g} s."
        return DriverAnswer(problem=silent, timed_out=True, module_version=module), None
    except NvmlUnavailable as error:
        code = error.__cause__.code if isinstance(error.__cause__, CallFailed) else None
        library = library_version(_text(Path("/proc/self/maps")))
        return DriverAnswer(problem=str(error), code=code, library_version=library, module_version=module), None
    return DriverAnswer(answered_version=machine.driver, module_version=module), machine


async def why_no_limits(nvml: Nvml, cgroup_root: Path, deadline_seconds: float) -> str:
    """Returns why the driver holds no container to its GPU memory, as a clause; empty if it does."""
    thread = OwnThreads("nvml")
    try:
        async with asyncio.timeout(deadline_seconds):
            machine = await thread.call(nvml.read_machine)
            gpus = [gpu.uuid for gpu in machine.gpus if gpu.healthy and not gpu.mig_enabled]
            facts = await ask_driver(MemoryLimits(nvml, thread), cgroup_root, gpus)
            return "" if facts.is_of_gpus and facts.is_limiting else why_no_driver(facts)
    except TimeoutError:
        return f"the driver gave no answer within {deadline_seconds:g} s"
    except NvmlUnavailable as error:
        return str(error)
    finally:
        nvml.close()


def driver_files_facts(root: DriverRoot) -> DriverFilesFacts:
    """Blocks."""
    try:
        return DriverFilesFacts(root=root.host, version=root.files().version)
    except NoDriver as error:
        return DriverFilesFacts(root=root.host, problem=str(error))


def runtime_facts(host_root: str, driver: DriverAnswer) -> RuntimeFacts:
    """Reads the configuration of NVIDIA's container runtime. Blocks."""
    path = runtime_config(host_root)
    try:
        text = Path(seen(host_root, path)).read_text(errors="replace")
    except OSError:
        text = None
    names_gpus = os.environ.get(VISIBLE_DEVICES, "") not in NONE_VISIBLE
    has_driver = driver.code is not None or not driver.problem
    return RuntimeFacts(path=path, text=text, names_gpus=names_gpus, has_driver=has_driver)


def socket_facts(path: str) -> SocketFacts:
    """Blocks for two seconds at most."""
    if not os.path.lexists(path):
        return SocketFacts(path=path, state=SocketState.MISSING)
    if not Path(path).is_socket():
        return SocketFacts(path=path, state=SocketState.NO_SOCKET)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_CONNECT_SECONDS)
        try:
            peer.connect(path)
        except PermissionError:
            return SocketFacts(path=path, state=SocketState.FORBIDDEN)
        except OSError:
            return SocketFacts(path=path, state=SocketState.REFUSED)
        return SocketFacts(path=path, state=SocketState.CONNECTS, listener=_listener(peer))


def other_sockets(folder: str, resource: str, ours: str) -> tuple[str, ...]:
    """Returns sockets of other device plugins that have a listener. `ours` is the path of our daemon's socket."""
    patterns = (*_OTHER_SOCKETS, shared_name(resource))
    found = {str(path) for pattern in patterns for path in Path(folder).glob(pattern)} - {ours}
    return tuple(path for path in sorted(found) if socket_facts(path).state is SocketState.CONNECTS)


def cdi_facts(names: Sequence[str], directories: tuple[str, ...] = CDI_DIRECTORIES) -> CdiFolderFacts:
    """Reads the CDI folders. `names` are those that containers will be given. Blocks."""
    missing = missing_devices(names, directories)
    return CdiFolderFacts(directories=directories, missing=missing, writable=is_writable(directories[-1]))


def _read(nvml: Nvml) -> MachineReading:
    try:
        return nvml.read_machine()
    finally:
        nvml.close()


def _listener(peer: socket.socket) -> tuple[str, ...]:
    """Returns the command line of the peer process; empty if it is in another PID namespace."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return tuple(filter(None, _text(Path(f"/proc/{pid}/cmdline")).split("\0"))) if pid else ()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
