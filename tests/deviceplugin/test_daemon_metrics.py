"""Metrics and probes, scraped from the daemon as a process."""

from pathlib import Path

import pytest

from simulation.nvml.machine_file import GpuLoad, MachineEvent, Process
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import NODE, A, share
from tests.polling import until

pytestmark = pytest.mark.needs_compiler

MIB = 1 << 20
CONTAINER_ID = "9c1e" * 16
PID, FOREIGN = 4_000_001, 4_000_002


def add_process(proc: Path, pid: int, cgroup: str) -> None:
    """Enough of /proc/<pid> for psutil."""
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["1", "1", "1", "0", "-1", *["0"] * 13, "4711", *["0"] * 30]
    (folder / "stat").write_text(f"{pid} (python) S {' '.join(fields)}\n")
    (folder / "status").write_text(f"Name:\tpython\nState:\tS\nTgid:\t{pid}\nPid:\t{pid}\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


def host_proc(proc: Path) -> None:
    """A host's /proc without processes of its own but the kernel's."""
    proc.mkdir()
    (proc / "stat").write_text(Path("/proc/stat").read_text())
    (proc / "2").mkdir()
    (proc / "2" / "comm").write_text("kthreadd\n")


async def test_a_scrape_shows_the_daemon_its_gpus_and_what_a_container_really_uses(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    host_proc(proc)
    async with daemon(host=tmp_path) as node:
        assert await node.get("/readyz") == (200, "4 GPUs, 4 of them healthy\n")
        assert await node.get("/healthz") == (200, "ok\n")
        uid = node.bind("train", 1)
        await node.runs("train")
        add_process(proc, PID, f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/{CONTAINER_ID}.scope")
        add_process(proc, FOREIGN, "/system.slice/x.service")
        node.machine(
            usage=(
                GpuLoad(gpu=1, busy_percent=80, celsius=71, milliwatts=312_500),
                Process(gpu=1, pid=PID, used_mib=700, sm_percent=60),
                Process(gpu=1, pid=FOREIGN, used_mib=50),
            )
        )
        found = await node.series()
        gpu = f'device_index="1",device_type="NVIDIA A100 80GB PCIe",device_uuid="{node.uuid(1)}",node="{NODE}"'
        share = f'container="c0",device_uuid="{node.uuid(1)}",namespace="default",pod="train",vdevice_index="0"'
        ours = f'device_index="1",device_uuid="{node.uuid(1)}"'
        expected = {
            "topogpu_kubelet_registered": 1,
            'topogpu_kubelet_registrations_total{outcome="ok"}': 1,
            'topogpu_node_patches_total{outcome="ok"}': 1,
            'topogpu_allocations_total{call="Allocate",outcome="ok",strategy="immediate"}': 1,
            "topogpu_pods": 1,
            f'hami_host_gpu_utilization_ratio{{{gpu},zone="vGPU"}}': 80,
            f'hami_host_gpu_temperature_celsius{{{gpu},zone="vGPU"}}': 71,
            f'hami_host_gpu_power_usage_watts{{{gpu},zone="vGPU"}}': 312.5,
            f'hami_vgpu_memory_limit_bytes{{{share},zone="vGPU"}}': 3000 * MIB,
            f'hami_vgpu_memory_used_bytes{{{share},zone="vGPU"}}': 700 * MIB,
            f"topogpu_vgpu_core_limit_ratio{{{share}}}": 0.3,
            f"topogpu_gpu_healthy{{{ours}}}": 1,
            f"topogpu_gpu_foreign_memory_used_bytes{{{ours}}}": 50 * MIB,
        }
        assert {name: found.get(name) for name in expected} == expected
        assert node.problems() == []


async def test_where_the_hosts_processes_cannot_be_seen_nobody_is_said_to_use_anything(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(Path("/proc/stat").read_text())
    async with daemon(host=tmp_path) as node:
        node.bind("train", 1)
        await node.runs("train")
        node.machine(usage=(Process(gpu=1, pid=PID, used_mib=700, sm_percent=60),))
        told = {name.partition("{")[0] for name in await node.series()}
        assert "hami_vgpu_memory_limit_bytes" in told
        assert not told & {
            "hami_vgpu_memory_used_bytes",
            "hami_container_device_utilization_ratio",
            "topogpu_gpu_foreign_memory_used_bytes",
        }


async def test_readiness_and_the_page_say_so_when_kubelet_or_the_api_server_is_away() -> None:
    async with daemon() as node:
        await node.kubelet.devices.stop()
        await until(lambda: node.capacity()[1] == 0)
        assert await node.get("/readyz") == (503, "kubelet has not accepted the registration yet\n")
        await node.server.go_offline()
        await until(lambda: node.counts("topogpu_api_server_stale"))
        status, why = await node.get("/readyz")
        assert status == 503
        assert "cannot be reached" in why
        assert (await node.series())["topogpu_kubelet_registered"] == 0
        await node.server.go_online()
        await node.kubelet.devices.start()
        await until(lambda: node.registrations() == 2)
        await until(node.is_ready)
        assert node.problems() == []


async def test_the_page_of_dcgm_s_names_shows_xids_and_who_holds_a_gpu_and_only_there() -> None:
    async with daemon("--read-seconds", "0.05") as node:
        node.bind("train", 1)
        await node.runs("train")
        gpu = f'gpu="1",UUID="{node.uuid(1)}",pci_bus_id="00000000:61:00.0",device="nvidia1",'
        gpu += f'modelName="NVIDIA A100 80GB PCIe",Hostname="{NODE}",DCGM_FI_DRIVER_VERSION="550.90.07"'
        held = f'{{{gpu},namespace="default",pod="train",container="c0"}}'
        node.machine(usage=[GpuLoad(gpu=1, busy_percent=80)])
        expected = {f"DCGM_FI_DEV_GPU_UTIL{held}": 80, f"DCGM_FI_DEV_XID_ERRORS{held}": 0}

        async def shown() -> bool:
            return expected.items() <= (await node.series("/metrics/dcgm")).items()

        await until(shown)
        node.machine(MachineEvent(gpu=1, data=43), usage=[GpuLoad(gpu=1, busy_percent=80)])
        await until(lambda: node.counts(f"DCGM_FI_DEV_XID_ERRORS{held}", "/metrics/dcgm"))
        assert (await node.series("/metrics/dcgm"))[f"DCGM_FI_DEV_XID_ERRORS{held}"] == 43
        assert not [name for name in await node.series() if name.startswith("DCGM")]
        assert node.problems() == []


async def test_a_failed_allocation_is_an_event_of_the_pod_and_counted() -> None:
    async with daemon() as node:
        node.bind("forged", lent=((share(A),),))
        await until(lambda: node.status("forged")["phase"] == "Failed")
        problem = f"pod default/forged, container c0: {A} is not a GPU of this node"
        await until(lambda: any(problem in message for message in node.events("UnexpectedAdmissionError")))
        counted = 'topogpu_allocations_total{call="Allocate",outcome="refused",strategy="immediate"}'
        assert (await node.series())[counted] == 1
