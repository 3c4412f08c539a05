"""A machine description as the reading that NVML would give on that machine."""

from deviceplugin.machine.numa import host_node
from deviceplugin.machine.readings import (
    Fabric,
    GpuReading,
    MachineReading,
    MigReading,
    MigSize,
    PairReading,
    PcieLevel,
    PeerStatus,
    SwitchEvidence,
)
from proto.devices import DeviceUUID
from simulation.machines.description import (
    FABRIC_STATES,
    DescribedFabric,
    DescribedGpu,
    MachineDescription,
    cpu_numbers,
    gpu_uuid,
    mig_uuid,
)

_LEVELS = {
    "INTERNAL": PcieLevel.INTERNAL,
    "PIX": PcieLevel.SINGLE,
    "PXB": PcieLevel.MULTIPLE,
    "PHB": PcieLevel.HOSTBRIDGE,
    "NODE": PcieLevel.NODE,
    "SYS": PcieLevel.SYSTEM,
}
_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


def describe_reading(machine: MachineDescription, instance: str = "") -> MachineReading:
    """GPUs get the UUIDs that the fake NVML library gives them for the same `instance`."""
    count = len(machine.gpus)
    return MachineReading(
        driver=machine.software.driver,
        cuda=(machine.software.cuda // 1000, machine.software.cuda % 1000 // 10),
        cpu=machine.host.interconnect or machine.host.cpu,
        gpus=tuple(_gpu(machine, index, instance) for index in range(count)),
        pairs={(i, j): _pair(machine, i, j) for i in range(count) for j in range(i + 1, count)},
    )


def _gpu(machine: MachineDescription, index: int, instance: str) -> GpuReading:
    gpu = machine.gpus[index]
    nvlink = machine.nvlink if machine.links(index) else None
    numa = _host_node(machine, gpu)
    uuid = DeviceUUID(gpu_uuid(machine.id, index, instance))
    return GpuReading(
        index=index,
        uuid=uuid,
        name=gpu.name,
        bus_id=gpu.bus,
        memory_mib=gpu.memory_mib,
        minor=index,
        numa=numa,
        own_numa=gpu.own_numa,
        cpu_affinity=next((node.cpus for node in machine.host.numa if node.id == numa), ""),
        numa_affinity=str(numa) if numa >= 0 else "",
        compute_capability=gpu.compute_capability,
        pci_class=gpu.pci_class,
        mig_capable=gpu.mig != "unsupported",
        mig_enabled=gpu.mig == "enabled",
        mig_devices=tuple(
            MigReading(
                uuid=DeviceUUID(mig_uuid(machine.id, index, mig, instance)),
                profile=mig.profile,
                gi=mig.gi,
                ci=mig.ci,
                parent=uuid,
                memory_mib=mig.memory_mib,
                size=MigSize(
                    gpu_slices=mig.slices[0],
                    compute_slices=mig.slices[1],
                    multiprocessors=gpu.multiprocessors_per_slice * mig.slices[1],
                    copy_engines=mig.slices[0],
                ),
            )
            for mig in gpu.mig_devices
        ),
        pcie_gen=gpu.pcie.gen if gpu.pcie else None,
        pcie_width=gpu.pcie.width_now if gpu.pcie else None,
        switch_links=machine.switch_links(index),
        switch_evidence=_evidence(machine, index),
        nvlink_version=nvlink.version if nvlink else None,
        nvlink_mbps=nvlink.mbps if nvlink else None,
        fabric=_fabric(machine.fabric) if machine.fabric else None,
    )


def _host_node(machine: MachineDescription, gpu: DescribedGpu) -> int:
    return host_node(gpu.numa, (), (), {node.id: cpu_numbers(node.cpus) for node in machine.host.numa})


def _evidence(machine: MachineDescription, index: int) -> SwitchEvidence:
    if "field:147" not in machine.unsupported:
        return SwitchEvidence.FIELD
    return SwitchEvidence.TYPE if machine.switch_links(index) else SwitchEvidence.NONE


def _fabric(fabric: DescribedFabric) -> Fabric:
    return Fabric(
        state=FABRIC_STATES.index(fabric.state),
        status=0 if fabric.status == "SUCCESS" else 999,
        cluster=_NO_CLUSTER if fabric.cluster == "zero" else fabric.cluster,
        clique=fabric.clique,
    )


def _pair(machine: MachineDescription, first: int, second: int) -> PairReading:
    there = sum(end.peer == second for end in machine.links(first))
    back = sum(end.peer == first for end in machine.links(second))
    linked = bool(there and back) or bool(machine.switch_links(first) and machine.switch_links(second))
    return PairReading(
        level=_LEVELS[machine.level(first, second)],
        links_there=there,
        links_back=back,
        p2p_nvlink=PeerStatus.OK if linked else PeerStatus.REFUSED,
        p2p_pcie=_peer_status(machine.gpus[first], machine.gpus[second]),
    )


def _peer_status(first: DescribedGpu, second: DescribedGpu) -> PeerStatus:
    statuses = {first.p2p.pci, second.p2p.pci}
    if statuses == {"OK"}:
        return PeerStatus.OK
    return PeerStatus.UNREADABLE if statuses <= {"OK", "UNKNOWN"} else PeerStatus.REFUSED
