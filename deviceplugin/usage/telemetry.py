"""The state of each GPU, with the names, units and kinds of NVIDIA's DCGM exporter, as far as NVML reports it.

Names and kinds are those of etc/default-counters.csv of NVIDIA/dcgm-exporter 4.8.2; the reasons for low clocks have
the name of DCGM's own field (112). Of what that file lists NVML does not report: `DCGM_FI_PROF_*` (the profiler's
counters), `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` (a rate between two samples of DCGM's own; here the bytes are counted)
and `DCGM_FI_DEV_VGPU_LICENSE_STATUS`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Self

from deviceplugin.machine.readings import GpuReading
from proto.devices import DeviceUUID

Kind = Literal["gauge", "counter"]


class Quantity(StrEnum):
    """One family each: its name on the page, its kind and its meaning."""

    kind: Kind
    documentation: str

    def __new__(cls, name: str, kind: Kind, documentation: str) -> Self:
        made = str.__new__(cls, name)
        made._value_, made.kind, made.documentation = name, kind, documentation
        return made

    SM_CLOCK = "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."
    MEM_CLOCK = "DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."
    MEMORY_TEMP = "DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."
    GPU_TEMP = "DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."
    POWER_USAGE = "DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."
    ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy used since the driver was loaded (in mJ)."
    PCIE_REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries."
    GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL", "gauge", "Time in which the GPU computed (in %)."
    MEM_COPY_UTIL = "DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Time in which GPU memory was read or written (in %)."
    ENC_UTIL = "DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %)."
    DEC_UTIL = "DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."
    XID_ERRORS = "DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the last XID error since the daemon started, 0 for none."
    CLOCK_REASONS = (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "gauge",
        "Why clocks are lower than they could be: nvmlClocksEventReason bits.",
    )
    FB_FREE = "DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."
    FB_USED = "DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used, without the driver's reserved part (in MiB)."
    FB_RESERVED = "DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved by the driver (in MiB)."
    ECC_SBE_VOLATILE = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit ECC errors since the driver was loaded."
    ECC_DBE_VOLATILE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit ECC errors since the driver was loaded."
    ECC_SBE_AGGREGATE = "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "counter", "Single-bit ECC errors of the GPU's life."
    ECC_DBE_AGGREGATE = "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter", "Double-bit ECC errors of the GPU's life."
    ROWS_UNCORRECTABLE = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for uncorrectable errors."
    ROWS_CORRECTABLE = "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for correctable errors."
    ROWS_FAILED = "DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 where remapping a row failed."
    NVLINK_CRC_FLIT = (
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "counter",
        "NVLink flow-control CRC errors, all links.",
    )
    NVLINK_CRC_DATA = "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "counter", "NVLink data CRC errors, all links."
    NVLINK_REPLAYS = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "NVLink retries, all links."
    NVLINK_RECOVERIES = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "NVLink recovery errors, all links."
    NVLINK_SENT = "topogpu_gpu_nvlink_sent_bytes_total", "counter", "Data sent over all NVLinks, without protocol."
    NVLINK_RECEIVED = (
        "topogpu_gpu_nvlink_received_bytes_total",
        "counter",
        "Data received over all NVLinks, without protocol.",
    )
    PCIE_SENT = "topogpu_gpu_pcie_sent_bytes_total", "counter", "Bytes sent over PCIe."
    PCIE_RECEIVED = "topogpu_gpu_pcie_received_bytes_total", "counter", "Bytes received over PCIe."


Values = Mapping[Quantity, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One GPU instance of a GPU with MIG on."""

    gi: int
    profile: str
    devices: frozenset[DeviceUUID]
    """The MIG devices: several where compute instances divide it further."""
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """One GPU at one moment. What the driver does not report is not in `values`."""

    gpu: GpuReading
    values: Values = field(default_factory=dict)
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTelemetry:
    driver: str = ""
    gpus: tuple[Telemetry, ...] = ()


def instances_of(gpu: GpuReading) -> Iterable[Instance]:
    """Lists the GPU instances by id. `1c.2g.10gb` is a MIG device of an instance of profile 2g.10gb."""
    ids = sorted({mig.gi for mig in gpu.mig_devices})
    for gi in ids:
        devices = [mig for mig in gpu.mig_devices if mig.gi == gi]
        compute, _, profile = devices[0].profile.partition("c.")
        yield Instance(
            gi=gi,
            profile=profile if compute.isdigit() else devices[0].profile,
            devices=frozenset(mig.uuid for mig in devices),
        )
