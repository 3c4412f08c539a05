"""Creates the daemon's parts from the configuration."""

import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deviceplugin.agent import Agent
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.cdi_files import ensure_defined
from deviceplugin.container.device_nodes import UNIFIED_MEMORY, DeviceFiles, read_hardware
from deviceplugin.container.driver_files import NoDriver
from deviceplugin.container.driver_root import DriverRoot, driver_root
from deviceplugin.container.edits import (
    CDI_KIND,
    CDI_STRATEGIES,
    AllocationSettings,
    DeviceListStrategy,
    Mount,
    cdi_names,
)
from deviceplugin.following import Choice
from deviceplugin.gpus import Gpus, GpusUnavailable, Inventory
from deviceplugin.health.step import FABRIC_PROBLEM
from deviceplugin.health_watch import HealthWatch
from deviceplugin.host_paths import proc, sysfs
from deviceplugin.machine.discovery import left_out, resources
from deviceplugin.machine.features import feature_labels
from deviceplugin.machine.readings import GpuReading, MachineReading
from deviceplugin.machine.topology import asymmetric_pairs, build_topology, pair_scores
from deviceplugin.metrics.metrics import Metrics
from deviceplugin.metrics.sampling import has_ended
from deviceplugin.metrics.view import DaemonView
from deviceplugin.nvml.events import NvmlEvents
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.memory_limits import MemoryLimits, without_reserved
from deviceplugin.nvml.reader import Nvml
from deviceplugin.own_threads import OwnThreads
from deviceplugin.region_files import RegionReader
from program.commands import modules_kept
from program.words import as_sentence
from proto.annotations.node_limits import Backend
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer

if TYPE_CHECKING:
    from deviceplugin.metrics.server import MetricsServer

log = logging.getLogger(__name__)

POD_NAMESPACE = "POD_NAMESPACE"
"""The variable with the namespace of the daemon's pod."""
_NO_UNIFIED_MEMORY = (
    f"{UNIFIED_MEMORY} is missing: CUDA programs in containers that start now will find no GPU; load the kernel "
    "module nvidia-uvm and create its device file (nvidia-modprobe -u -c 0)"
)


def build_daemon(
    configuration: Configuration, api: ApiServer, nvml: Nvml, choice: Choice | None = None
) -> Coroutine[None, None, None]:
    """Runs the whole daemon until cancelled. Raises MetricsAddressUnusable.

    With `choice` it follows the label that names its configuration.
    """
    configuration = of_this_pod(configuration)
    thread, changes, metrics = OwnThreads("nvml"), Changes(), Metrics(now=time.time)
    gpus = Gpus(
        gpu_reader(nvml, configuration),
        thread,
        changes,
        configuration.agent,
        took=lambda seconds: metrics.nvml_read("machine", seconds),
    )
    health = HealthWatch(
        thread, nvml.calls, NvmlEvents(), gpus.set_ailing, configuration.health, count=metrics.health_event
    )
    agent = Agent(api, gpus, changes, metrics, configuration, now=_now, memory_limits=MemoryLimits(nvml, thread))
    server = _metrics_server(
        *(configuration, nvml, thread, metrics),
        view=lambda: replace(agent.view(), xids=health.xids),
        by_driver=agent.driver_limits.used_now,
    )
    return agent.run(
        *([agent.follow(choice)] if choice is not None else []),
        health.run(),
        _watch_health(gpus, health, changes),
        _write_cdi_spec(gpus, changes, configuration.containers),
        *([server.run()] if server is not None else []),
    )


def of_this_pod(configuration: Configuration) -> Configuration:
    """Returns the configuration with the namespace of this process's pod, if it runs in one."""
    if not (namespace := os.environ.get(POD_NAMESPACE, "")):
        return configuration
    return replace(configuration, remediation=replace(configuration.remediation, lease_namespace=namespace))


async def _watch_health(gpus: Gpus, health: HealthWatch, changes: Changes) -> None:
    """Watches the GPUs of each reading. Runs until cancelled."""
    async for physical in changes.of(lambda: gpus.inventory.physical):
        health.watch(physical)


async def _write_cdi_spec(gpus: Gpus, changes: Changes, allocation: AllocationSettings) -> None:
    """Writes the CDI spec of the GPUs once they are known, where it is missing."""
    if not CDI_STRATEGIES.intersection(allocation.strategies):
        return
    while not gpus.inventory.devices:
        await changes.next().wait()
    uuids = [device.uuid for device in gpus.inventory.devices]
    names = cdi_names(uuids, allocation)
    hardware = gpus.inventory.hardware
    problem = await OwnThreads("cdi specs").call(partial(ensure_defined, names, CDI_KIND, hardware=hardware))
    if problem:
        log.error("%s", problem)


def _metrics_server(
    configuration: Configuration,
    nvml: Nvml,
    thread: OwnThreads,
    metrics: Metrics,
    *,
    view: Callable[[], DaemonView],
    by_driver: Callable[[], Mapping[tuple[str, str, DeviceUUID], int]],
) -> "MetricsServer | None":
    """Imports what metrics need, because a daemon without them does not need these modules' memory."""
    if not configuration.metrics_bind_address:
        return None
    with modules_kept():
        from deviceplugin.metrics.sampling import Sampler, use_host_proc  # noqa: PLC0415
        from deviceplugin.metrics.server import MetricsServer, Samples, UseWatch  # noqa: PLC0415

    use_host_proc(str(proc(configuration.host.root)))
    regions = RegionReader(f"{configuration.agent.hook_path}/vgpu/containers", has_ended=has_ended)
    sampler = Sampler(nvml, regions.read, thread, by_driver=by_driver)
    use = UseWatch(view=view, monotonic=time.monotonic, now=time.time)
    samples = Samples(sampler.take, metrics, monotonic=time.monotonic, took=use.saw)
    telemetry = Samples(sampler.telemetry, metrics, monotonic=time.monotonic, reading="telemetry")
    address = configuration.metrics_bind_address
    return MetricsServer(address, metrics, samples, telemetry, view, use=use, monotonic=time.monotonic)


def build_nvml(configuration: Configuration) -> Nvml:
    root = driver_root(configuration.host)
    library = configuration.host.nvml_library or (root.nvml if root is not None else None)
    return Nvml(library, sysfs_root=sysfs(configuration.host.root))


def gpu_reader(nvml: Nvml, configuration: Configuration) -> Callable[[], Inventory]:
    """Reads this machine; blocks. Raises GpusUnavailable without a driver or a GPU."""
    sharing, health = configuration.sharing, configuration.health
    files = DeviceFiles(Path(configuration.host.dev_root), proc(configuration.host.root))
    root, strategies = driver_root(configuration.host), configuration.containers.strategies
    by_files, resource = DeviceListStrategy.DRIVER_FILES in strategies, configuration.kubelet.resource_name

    def read() -> Inventory:
        try:
            machine = _with_fabric_problems(nvml.read_machine()) if health.fabric else nvml.read_machine()
        except NvmlUnavailable as error:
            raise GpusUnavailable(as_sentence(str(error)), needs_restart=error.needs_restart) from error
        offered = without_reserved(machine, nvml) if Backend.DRIVER in configuration.agent.limits.backends else machine
        found = dict(resources(offered, sharing, resource))
        notes = (*machine.problems, *left_out(machine, sharing))
        if not any(found.values()):
            nothing = "the NVIDIA driver shows no GPU on this machine that can be shared"
            are_gone = not any(gpu.healthy for gpu in machine.gpus)
            raise GpusUnavailable(as_sentence("; ".join([nothing, *notes])), are_gone=are_gone)
        devices = found.pop(resource)
        hardware = read_hardware(
            machine.gpus, files, configuration.containers.imex_channels, simulated=machine.is_simulated
        )
        if root is not None:
            hardware = replace(hardware, driver_mounts=_driver_mounts(root, machine.driver))
        if by_files and all(node.path != UNIFIED_MEMORY for node in hardware.control_nodes):
            notes = (*notes, _NO_UNIFIED_MEMORY)
        return Inventory(
            devices=devices,
            kept=resources(machine, sharing.of_running_pods(), resource)[resource],
            scores=pair_scores(build_topology(machine), [device.uuid for device in devices]),
            instances=found,
            problems={gpu.uuid: gpu.problem for gpu in machine.gpus if not gpu.healthy},
            memory_mib={gpu.uuid: gpu.memory_mib for gpu in machine.gpus if gpu.memory_mib is not None},
            physical=frozenset(gpu.uuid for gpu in machine.gpus),
            parents={uuid: mig.parent for uuid, mig in machine.mig_devices.items()},
            hardware=hardware,
            labels=feature_labels(machine, sharing),
            notes=notes,
            missing=tuple(gpu for gpu in machine.missing if not sharing.hides(gpu.uuid, gpu.index)),
            is_simulated=machine.is_simulated,
            is_doubtful=machine.is_doubtful,
            disagreements=tuple(pair.sentence for pair in asymmetric_pairs(machine)),
        )

    return read


def _driver_mounts(root: DriverRoot, running: str) -> tuple[Mount, ...]:
    """Finds the driver's files. `running` is the version of the driver in the kernel, empty if unknown. Raises
    GpusUnavailable.
    """
    try:
        found = root.files()
    except NoDriver as error:
        raise GpusUnavailable(as_sentence(str(error))) from error
    if running and running != found.version:
        what = f"the NVIDIA driver in the kernel is {running} and its libraries below {root.host} are {found.version}"
        raise GpusUnavailable(
            as_sentence(f"{what}: containers could not use it; load the kernel module of the libraries' version")
        )
    return found.mounts


def _with_fabric_problems(machine: MachineReading) -> MachineReading:
    """The health polls find the same; until the first of them, nothing may be offered either."""
    return replace(machine, gpus=tuple(gpu if gpu.problem else _with_fabric_problem(gpu) for gpu in machine.gpus))


def _with_fabric_problem(gpu: GpuReading) -> GpuReading:
    is_broken = gpu.fabric is not None and gpu.fabric.is_broken and not gpu.mig_enabled
    return replace(gpu, problem=FABRIC_PROBLEM) if is_broken else gpu


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the only clock of this program
