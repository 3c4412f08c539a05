import asyncio
import os
import socket
import threading
from pathlib import Path

from deviceplugin.doctor.kubelet import SocketState
from deviceplugin.doctor.node_facts import (
    cdi_facts,
    driver_facts,
    other_sockets,
    socket_facts,
)
from deviceplugin.machine.readings import MachineReading
from deviceplugin.nvml.reader import Nvml
from deviceplugin.plugin_sockets import plugin_socket
from tests.deviceplugin.registration import kubelet_root
from tests.polling import until


async def test_a_socket_is_missing_or_no_socket_or_left_behind_or_answers_with_its_process() -> None:
    async with kubelet_root() as root:
        path = f"{root}/x.sock"
        seen = [socket_facts(path).state]
        Path(path).write_text("")
        seen.append(socket_facts(path).state)
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            answer = socket_facts(path)
        seen += [answer.state, socket_facts(path).state]
        assert seen == [SocketState.MISSING, SocketState.NO_SOCKET, SocketState.CONNECTS, SocketState.REFUSED]
        assert "\0".join(answer.listener) + "\0" == Path("/proc/self/cmdline").read_text()


async def test_only_sockets_of_others_with_somebody_behind_them_count() -> None:
    async with kubelet_root() as root:
        with (
            socket.socket(socket.AF_UNIX) as server,
            socket.socket(socket.AF_UNIX) as ours,
            socket.socket(socket.AF_UNIX) as newer,
        ):
            server.bind(f"{root}/nvidiaGPU-17.sock")
            server.listen()
            ours.bind(f"{root}/nvidia-gpu.0a1b2c3d.sock")
            ours.listen()
            Path(root, "nvidia.sock").write_text("")
            known = plugin_socket(root, "nvidia.com/gpu")
            assert known == f"{root}/nvidia-gpu.0a1b2c3d.sock"
            assert other_sockets(root, "nvidia.com/gpu", known) == (f"{root}/nvidiaGPU-17.sock",)
            newer.bind(f"{root}/nvidia-gpu.sock")
            newer.listen()
            assert other_sockets(root, "nvidia.com/gpu", known) == (
                f"{root}/nvidia-gpu.sock",
                f"{root}/nvidiaGPU-17.sock",
            )


async def test_our_sockets_are_found_by_the_last_that_answers() -> None:
    async with kubelet_root() as root:
        assert plugin_socket(root, "nvidia.com/gpu") == f"{root}/nvidia-gpu.*.sock"
        Path(root, "nvidia-gpu.sock").touch()
        assert plugin_socket(root, "nvidia.com/gpu") == f"{root}/nvidia-gpu.sock"
        with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as dead:
            alive.bind(f"{root}/nvidia-gpu.00000001.sock")
            alive.listen()
            dead.bind(f"{root}/nvidia-gpu.00000002.sock")
            os.utime(f"{root}/nvidia-gpu.00000001.sock", (0, 0))  # else both may be of the same tick of the clock
            assert plugin_socket(root, "nvidia.com/gpu") == f"{root}/nvidia-gpu.00000001.sock"
        # A process that another test starts at this moment may hold the listening socket until it runs its program.
        await until(lambda: plugin_socket(root, "nvidia.com/gpu") == f"{root}/nvidia-gpu.00000002.sock")


def test_cdi_folders_are_read_and_need_not_be_there(tmp_path: Path) -> None:
    facts = cdi_facts(["nvidia.com/gpu=a", "nvidia.com/gpu=b"], (str(tmp_path), str(tmp_path / "run/cdi")))
    assert (len(facts.missing), facts.writable, (tmp_path / "run").exists()) == (2, True, False)
    (tmp_path / "s.json").write_text('{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "a"}]}')
    assert cdi_facts(["nvidia.com/gpu=a", "nvidia.com/gpu=b"], (str(tmp_path),)).missing == ("nvidia.com/gpu=b",)


class HangingNvml(Nvml):
    """A driver that does not answer before the test is over."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def read_machine(self) -> MachineReading:
        self.over.wait()
        return MachineReading()


async def test_a_driver_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    nvml = HangingNvml()
    async with asyncio.timeout(60):
        facts, machine = await driver_facts(nvml, str(tmp_path), 0.05)
    nvml.over.set()
    assert (facts.timed_out, machine) == (True, None)
