from dataclasses import replace

import pytest

from deviceplugin.doctor.driver import (
    GPUS,
    DriverAnswer,
    DriverFilesFacts,
    judge_driver,
    judge_driver_files,
    judge_gpus,
    library_version,
    module_version,
)
from deviceplugin.doctor.finding import Finding, FindingState
from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.machine.readings import GpuReading, MachineReading, MigReading, PairReading, PcieLevel
from proto.devices import DeviceUUID

RESOURCE = "nvidia.com/gpu"
NO_LIBRARY = "no NVIDIA driver on this machine: libnvidia-ml.so.1 is not found"


def gpu(index: int, **changed: object) -> GpuReading:
    uuid = DeviceUUID(f"GPU-{index:08}-0000-0000-0000-000000000000")
    plain = GpuReading(
        index=index, uuid=uuid, name="NVIDIA A100", bus_id=f"0000:0{index}:00.0", memory_mib=40960, numa=0
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def machine(*gpus: GpuReading, problems: tuple[str, ...] = (), there: int = 0, back: int = 0) -> MachineReading:
    pairs = {(0, 1): PairReading(level=PcieLevel.NODE, links_there=there, links_back=back)} if len(gpus) == 2 else {}
    return MachineReading(driver="550.90.07", gpus=gpus, pairs=pairs, problems=problems)


def worse(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(one.state.value, one.explanation) for one in findings if one.state is not FindingState.OK]


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (DriverAnswer(answered_version="550.90.07"), "ok", "Version 550.90.07 answers."),
        (DriverAnswer(problem=NO_LIBRARY, code=12), "problem", "Install the NVIDIA driver"),
        (DriverAnswer(problem=NO_LIBRARY, code=12, module_version="550.90.07"), "problem", "550.90.07 is loaded"),
        (DriverAnswer(problem="cannot load the NVML library /x: no such file"), "problem", "--nvml-library"),
        (DriverAnswer(problem="the NVIDIA driver is not loaded on this machine", code=9), "problem", "modprobe nvidia"),
        (DriverAnswer(problem="the NVIDIA driver finds no GPU on this machine", code=28), "problem", "lspci"),
        (DriverAnswer(problem="the NVIDIA driver answers nothing", code=999), "problem", "new container"),
        (DriverAnswer(problem="the NVIDIA driver cannot be used: no permission", code=4), "problem", "nvidia-smi"),
        (DriverAnswer(problem="It gave no answer within 6 s.", timed_out=True), "problem", "reboot the node"),
    ],
)
def test_each_answer_of_the_driver_has_its_remedy(facts: DriverAnswer, state: str, words: str) -> None:
    finding = judge_driver(facts)
    assert finding.state == state
    assert words in f"{finding.explanation} {finding.remedy}"


@pytest.mark.parametrize("code", [18, 999])
def test_a_mismatch_names_both_versions_whatever_the_driver_calls_it(code: int) -> None:
    facts = DriverAnswer(problem="p", code=code, library_version="550.90.07", module_version="535.104.05")
    assert judge_driver(facts) == Finding(
        "NVIDIA driver",
        FindingState.PROBLEM,
        "The NVML library 550.90.07 and the loaded kernel module 535.104.05 are of different driver versions, as after "
        "an upgrade without a reboot; no GPU can be used.",
        "Reboot the node, or stop everything that uses the GPUs and reload the nvidia modules. In a container, restart "
        "it so that it gets the matching library.",
    )


def test_a_mismatch_is_told_without_versions_where_they_are_unknown() -> None:
    assert (
        "The NVML library and the loaded kernel module are of"
        in judge_driver(DriverAnswer(problem="p", code=18)).explanation
    )


def test_files_of_another_driver_than_the_kernels_are_a_problem() -> None:
    files = DriverFilesFacts(root="/run/nvidia/driver", version="560.28.03")
    finding = judge_driver_files(files, "550.90.07")
    assert (finding.state, finding.explanation) == (
        FindingState.PROBLEM,
        "The driver in the kernel is 550.90.07 and its libraries below /run/nvidia/driver are 560.28.03: no GPU is "
        "offered.",
    )
    assert judge_driver_files(files, "").state is FindingState.OK


def test_versions_are_read_where_the_kernel_tells_them() -> None:
    proprietary = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12"
    )
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)"
    mapped = "7f0 r-xp 0 08:01 1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.90.07\n"
    assert (module_version(proprietary), module_version(opened), module_version("")) == ("535.104.05", "570.86.15", "")
    assert (library_version(mapped), library_version("/x/libnvidia-ml.so.1")) == ("550.90.07", "")


def test_gpus_that_are_well_are_counted_and_nothing_else_is_said() -> None:
    findings = judge_gpus(machine(gpu(0), gpu(1)), NodeSharing(), RESOURCE)
    assert worse(findings) == []
    assert findings[0] == Finding(GPUS, FindingState.OK, "2 GPUs found, all 2 shared as nvidia.com/gpu.")


def test_a_lost_gpu_and_one_never_seen_are_problems() -> None:
    lost = "GPU 0: GPU is lost"
    findings = judge_gpus(
        machine(gpu(0, problem="GPU is lost"), problems=(lost, "GPU 1: no UUID")), NodeSharing(), RESOURCE
    )
    assert worse(findings) == [
        ("problem", "GPU 0: GPU is lost; it is advertised as unhealthy or not at all."),
        ("problem", "GPU 1: no UUID; it is advertised as unhealthy or not at all."),
    ]


def test_a_gpu_without_known_memory_is_a_problem_that_leads_to_the_setting() -> None:
    (told, why) = worse(judge_gpus(machine(gpu(0, memory_mib=None)), NodeSharing(), RESOURCE))
    assert told == ("problem", "1 GPU found, none can be shared.")
    assert "the driver does not report its memory; preconfigure an amount for it" in why[1]


@pytest.mark.parametrize(
    ("strategy", "enabled", "words"),
    [
        ("none", True, "a pod that gets such a GPU sees all its MIG devices"),
        ("single", False, "no GPU of this machine has MIG on"),
        ("mixed", False, "no GPU of this machine has MIG on"),
    ],
)
def test_a_mig_strategy_that_does_not_fit_the_gpus_is_a_warning(strategy: str, enabled: bool, words: str) -> None:
    sharing = NodeSharing(mig_strategy=strategy)  # type: ignore[arg-type]
    (found,) = worse(judge_gpus(machine(gpu(0, mig_enabled=enabled)), sharing, RESOURCE))
    assert found[0] == "warning"
    assert words in found[1]


def test_mig_devices_of_two_kinds_under_strategy_single_are_a_problem() -> None:
    parent = gpu(0).uuid
    kinds = tuple(
        MigReading(uuid=DeviceUUID(f"MIG-{profile}"), profile=profile, gi=1, ci=0, parent=parent, memory_mib=4864)
        for profile in ("1g.5gb", "2g.10gb")
    )
    reading = machine(gpu(0, mig_enabled=True, mig_devices=kinds))
    ((state, why),) = worse(judge_gpus(reading, NodeSharing(mig_strategy="single"), RESOURCE))
    assert state == "problem"
    assert "make them alike or choose strategy mixed" in why


def test_an_unknown_numa_node_and_links_that_disagree_are_warnings() -> None:
    findings = worse(judge_gpus(machine(gpu(0, numa=-1), gpu(1), there=4, back=2), NodeSharing(), RESOURCE))
    assert [state for state, _ in findings] == ["warning", "warning"]
    assert findings[0][1].startswith("The NUMA node of GPU 0 is unknown")
