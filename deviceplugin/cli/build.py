"""Creates the daemon's parts from the configuration."""

import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from deviceplugin.agent import Agent
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.configuration_label import Choice
from deviceplugin.container.cdi_files import ensure_defined
from deviceplugin.container.driver_root import driver_root
from deviceplugin.container.edits import (
    CDI_KIND,
    CDI_STRATEGIES,
    AllocationSettings,
    cdi_names,
)
from deviceplugin.gpus import Gpus, gpu_reader
from deviceplugin.health_watch import HealthWatch
from deviceplugin.host_paths import proc, sysfs
from deviceplugin.metrics.metrics import Metrics
from deviceplugin.metrics.sampling import has_ended
from deviceplugin.metrics.view import DaemonView
from deviceplugin.nvml.events import NvmlEvents
from deviceplugin.nvml.memory_limits import MemoryLimits
from deviceplugin.nvml.reader import Nvml
from deviceplugin.own_threads import OwnThreads
from deviceplugin.region_files import RegionReader
from program.commands import modules_kept
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer

if TYPE_CHECKING:
    from deviceplugin.metrics.server import MetricsServer

log = logging.getLogger(__name__)

POD_NAMESPACE = "POD_NAMESPACE"
"""The variable with the namespace of the daemon's pod."""


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


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the only clock of this program
