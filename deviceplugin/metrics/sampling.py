"""One look at the whole node: the driver, the processes on its GPUs, HAMi-core's regions."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from deviceplugin.metrics.processes import host_is_seen, owners_of
from deviceplugin.nvml.reader import Nvml, NvmlUnavailable
from deviceplugin.nvml.telemetry import read_telemetry
from deviceplugin.nvml.usage import UsageReader
from deviceplugin.region_files import read_regions
from deviceplugin.usage.accounts import GpuSample, NodeSample
from deviceplugin.usage.telemetry import NodeTelemetry

log = logging.getLogger(__name__)


class Sampler:
    """Blocks, and belongs to the thread that owns `nvml`. `containers` is the folder of HAMi-core's regions."""

    def __init__(self, nvml: Nvml, containers: str) -> None:
        self._nvml = nvml
        self._containers = containers
        self._reader = UsageReader()
        self._told: frozenset[tuple[str, str]] = frozenset()

    def take(self) -> NodeSample:
        """Without GPUs where there is no driver. Raises OSError where the regions' folder cannot be read."""
        gpus = self._gpus()
        files = read_regions(self._containers)
        self._tell(files.problems)
        pids = {process.pid for gpu in gpus for process in gpu.processes or ()}
        return NodeSample(
            gpus=gpus,
            owners=owners_of(sorted(pids)),
            regions=files.regions,
            unreadable_regions=len(files.problems),
            regions_left_out=files.left_out,
        )

    def _gpus(self) -> tuple[GpuSample, ...]:
        try:
            gpus = self._reader.read(self._nvml.calls(), self._nvml.handles())
        except NvmlUnavailable:
            return ()
        return gpus if host_is_seen() else tuple(replace(gpu, processes=None) for gpu in gpus)

    def telemetry(self) -> NodeTelemetry:
        """Without GPUs where there is no driver."""
        try:
            gpus = read_telemetry(self._nvml.calls(), self._nvml.gpus())
        except NvmlUnavailable:
            return NodeTelemetry()
        return NodeTelemetry(driver=self._nvml.driver, gpus=gpus)

    def _tell(self, problems: Mapping[tuple[str, str], str]) -> None:
        """Once for each region until it can be read again: its tenant decides what is wrong with it."""
        for who in sorted(problems.keys() - self._told):
            log.warning("region of container %s of pod %s: %s", who[1], who[0], problems[who])
        self._told = frozenset(problems)
