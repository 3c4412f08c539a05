"""The state of each GPU, with the names, units and kinds of NVIDIA's DCGM exporter, as far as NVML reports it.

Names and kinds are those of etc/default-counters.csv of NVIDIA/dcgm-exporter 4.8.2; the reasons for low clocks have
the name of DCGM's own field (112). Of what that file lists NVML does not report: `DCGM_FI_PROF_*` (the profiler's
counters), `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` (a rate between two samples of DCGM's own; here the bytes are counted)
and `DCGM_FI_DEV_VGPU_LICENSE_STATUS`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from deviceplugin.machine.readings import GpuReading
from proto.devices import DeviceUUID

Kind = Literal["gauge", "counter"]


class Family(NamedTuple):
    kind: Kind
    documentation: str


class Quantity(StrEnum):
    """One family each, by its name on the page."""

    SM_CLOCK = "DCGM_FI_DEV_SM_CLOCK"
    MEM_CLOCK = "DCGM_FI_DEV_MEM_CLOCK"
    MEMORY_TEMP = "DCGM_FI_DEV_MEMORY_TEMP"
    GPU_TEMP = "DCGM_FI_DEV_GPU_TEMP"
    POWER_USAGE = "DCGM_FI_DEV_POWER_USAGE"
    ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    PCIE_REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL"
    MEM_COPY_UTIL = "DCGM_FI_DEV_MEM_COPY_UTIL"
    ENC_UTIL = "DCGM_FI_DEV_ENC_UTIL"
    DEC_UTIL = "DCGM_FI_DEV_DEC_UTIL"
    XID_ERRORS = "DCGM_FI_DEV_XID_ERRORS"
    CLOCK_REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    FB_FREE = "DCGM_FI_DEV_FB_FREE"
    FB_USED = "DCGM_FI_DEV_FB_USED"
    FB_RESERVED = "DCGM_FI_DEV_FB_RESERVED"
    ECC_SBE_VOLATILE = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
    ECC_DBE_VOLATILE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
    ECC_SBE_AGGREGATE = "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL"
    ECC_DBE_AGGREGATE = "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"
    ROWS_UNCORRECTABLE = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
    ROWS_CORRECTABLE = "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"
    ROWS_FAILED = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
    NVLINK_CRC_FLIT = "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"
    NVLINK_CRC_DATA = "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"
    NVLINK_REPLAYS = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"
    NVLINK_RECOVERIES = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
    NVLINK_SENT = "topogpu_gpu_nvlink_sent_bytes_total"
    NVLINK_RECEIVED = "topogpu_gpu_nvlink_received_bytes_total"
    PCIE_SENT = "topogpu_gpu_pcie_sent_bytes_total"
    PCIE_RECEIVED = "topogpu_gpu_pcie_received_bytes_total"


FAMILIES: Mapping[Quantity, Family] = {
    Quantity.SM_CLOCK: Family("gauge", "SM clock frequency (in MHz)."),
    Quantity.MEM_CLOCK: Family("gauge", "Memory clock frequency (in MHz)."),
    Quantity.MEMORY_TEMP: Family("gauge", "Memory temperature (in C)."),
    Quantity.GPU_TEMP: Family("gauge", "GPU temperature (in C)."),
    Quantity.POWER_USAGE: Family("gauge", "Power draw (in W)."),
    Quantity.ENERGY: Family("counter", "Energy used since the driver was loaded (in mJ)."),
    Quantity.PCIE_REPLAYS: Family("counter", "PCIe retries."),
    Quantity.GPU_UTIL: Family("gauge", "Time in which the GPU computed (in %)."),
    Quantity.MEM_COPY_UTIL: Family("gauge", "Time in which GPU memory was read or written (in %)."),
    Quantity.ENC_UTIL: Family("gauge", "Encoder utilization (in %)."),
    Quantity.DEC_UTIL: Family("gauge", "Decoder utilization (in %)."),
    Quantity.XID_ERRORS: Family("gauge", "Number of the last XID error since the daemon started, 0 for none."),
    Quantity.CLOCK_REASONS: Family("gauge", "Why clocks are lower than they could be: nvmlClocksEventReason bits."),
    Quantity.FB_FREE: Family("gauge", "Framebuffer memory free (in MiB)."),
    Quantity.FB_USED: Family("gauge", "Framebuffer memory used, without the driver's reserved part (in MiB)."),
    Quantity.FB_RESERVED: Family("gauge", "Framebuffer memory reserved by the driver (in MiB)."),
    Quantity.ECC_SBE_VOLATILE: Family("counter", "Single-bit ECC errors since the driver was loaded."),
    Quantity.ECC_DBE_VOLATILE: Family("counter", "Double-bit ECC errors since the driver was loaded."),
    Quantity.ECC_SBE_AGGREGATE: Family("counter", "Single-bit ECC errors of the GPU's life."),
    Quantity.ECC_DBE_AGGREGATE: Family("counter", "Double-bit ECC errors of the GPU's life."),
    Quantity.ROWS_UNCORRECTABLE: Family("counter", "Rows remapped for uncorrectable errors."),
    Quantity.ROWS_CORRECTABLE: Family("counter", "Rows remapped for correctable errors."),
    Quantity.ROWS_FAILED: Family("gauge", "1 where remapping a row failed."),
    Quantity.NVLINK_CRC_FLIT: Family("counter", "NVLink flow-control CRC errors, all links."),
    Quantity.NVLINK_CRC_DATA: Family("counter", "NVLink data CRC errors, all links."),
    Quantity.NVLINK_REPLAYS: Family("counter", "NVLink retries, all links."),
    Quantity.NVLINK_RECOVERIES: Family("counter", "NVLink recovery errors, all links."),
    Quantity.NVLINK_SENT: Family("counter", "Data sent over all NVLinks, without protocol."),
    Quantity.NVLINK_RECEIVED: Family("counter", "Data received over all NVLinks, without protocol."),
    Quantity.PCIE_SENT: Family("counter", "Bytes sent over PCIe."),
    Quantity.PCIE_RECEIVED: Family("counter", "Bytes received over PCIe."),
}

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
