import pytest

from deviceplugin.container.edits import DeviceListStrategy, HamiCore, NoHamiCore
from deviceplugin.container.limits import Backends
from deviceplugin.doctor.containers import (
    CdiFolderFacts,
    judge_allocation,
    judge_cdi,
    judge_cdi_specs,
    judge_limits,
)
from deviceplugin.doctor.finding import Finding
from deviceplugin.mode.rules import NodeAbilities
from deviceplugin.runtimes import Runtime
from deviceplugin.settings import HamiScheduler, RequestedAllocation
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import Backend

ENVVAR, CDI_CRI = (DeviceListStrategy.ENVVAR,), (DeviceListStrategy.CDI_CRI,)
FOLDER = "/usr/local/vgpu"
LIBRARY = f"{FOLDER}/libvgpu.so"
HAMI_CORE = HamiCore(root="/usr/local", library=LIBRARY, preload=f"{FOLDER}/ld.so.preload")
REFUSE, ALLOW = False, True


def brief(finding: Finding) -> tuple[str, str]:
    return finding.state.value, f"{finding.explanation} {finding.remedy}"


@pytest.mark.parametrize(
    ("found", "unenforced", "state", "words"),
    [
        (HAMI_CORE, REFUSE, "ok", f"{LIBRARY} is installed"),
        (
            HAMI_CORE,
            ALLOW,
            "warning",
            f"{LIBRARY} is installed, but it may not hold containers to parts of several GPUs",
        ),
        (
            NoHamiCore("it is not there"),
            REFUSE,
            "ok",
            "It is not there, so pods that ask for a part of a GPU are refused",
        ),
        (NoHamiCore("it is half there", is_damaged=True), REFUSE, "problem", "install-hami-core"),
        (
            NoHamiCore("it is not there"),
            ALLOW,
            "warning",
            "no limit of memory or cores holds in containers, although up to 10",
        ),
        (NoHamiCore("it is half there", is_damaged=True), ALLOW, "warning", "ake unenforced out of limits"),
    ],
)
def test_without_hami_core_only_whole_gpus_are_given_out_and_anything_else_is_told(
    found: HamiCore | NoHamiCore, unenforced: bool, state: str, words: str
) -> None:
    told = brief(judge_limits(Backends(hami_core=found), frozenset(Backend), unenforced, 10))
    assert told[0] == state
    assert words in told[1]


@pytest.mark.parametrize(
    ("requested", "unenforced", "no_driver", "state", "words"),
    [
        (frozenset(Backend), REFUSE, "", "ok", "and HAMi-core to their part of one GPU's cores"),
        (frozenset({Backend.DRIVER}), REFUSE, "", "ok", "a part of a GPU's cores are refused here"),
        (frozenset({Backend.DRIVER}), ALLOW, "", "warning", "Nothing holds containers to their part of cores"),
        (
            frozenset({Backend.DRIVER}),
            REFUSE,
            "the driver is 580",
            "problem",
            "limits no GPU memory: the driver is 580;",
        ),
        (frozenset({Backend.HAMI_CORE}), REFUSE, "", "ok", "is installed"),
        (frozenset(), REFUSE, "", "ok", "The setting limits of its daemon leaves it out, so pods"),
    ],
)
def test_doctor_says_what_holds_parts_where_the_driver_may(
    requested: frozenset[Backend], unenforced: bool, no_driver: str, state: str, words: str
) -> None:
    told = brief(judge_limits(Backends(hami_core=HAMI_CORE, no_driver=no_driver), requested, unenforced, 10))
    assert (told[0], words in told[1]) == (state, True), told


@pytest.mark.parametrize(
    ("kubelet", "runtime", "switch", "without", "wanted"),
    [
        ("v1.36.0", "containerd://2.1.0", None, "warning", "warning"),
        ("v1.36.0", "containerd://2.3.0", None, "ok", "ok"),
        ("v1.36.0", "containerd://2.1.0", False, "warning", "problem"),
        ("v1.36.0", "containerd://1.7.20", None, "warning", "warning"),
        ("v1.36.0", "containerd://1.7.20", True, "ok", "ok"),
        ("v1.36.0", "containerd://1.6.9", None, "warning", "problem"),
        ("v1.28.4", "containerd://2.0.0", None, "warning", "problem"),
        ("v1.31.1", "cri-o://1.31.0", None, "warning", "problem"),
        ("v1.31.1", "docker://27.0.1", None, "warning", "warning"),
        ("v1.31.1", "other://1.0", None, "warning", "warning"),
        ("", "", None, "skipped", "skipped"),
    ],
)
def test_cdi_that_is_off_is_a_problem_only_where_it_is_asked_for(
    kubelet: str, runtime: str, switch: bool | None, without: str, wanted: str
) -> None:
    facts = Runtime(kubelet=kubelet, runtime=runtime, enable_cdi=switch)
    immediate, slots = AllocationMode.IMMEDIATE, AllocationMode.SLOTS
    by_strategy, by_slots = judge_cdi(facts, CDI_CRI, immediate), judge_cdi(facts, ENVVAR, slots)
    assert judge_cdi(facts, ENVVAR, immediate).state == without
    assert (by_strategy.state, by_slots.state) == (wanted, wanted)


def test_missing_cdi_specifications_matter_where_cdi_is_asked_for() -> None:
    directories = ("/etc/cdi", "/var/run/cdi")
    missing = CdiFolderFacts(directories=directories, missing=("nvidia.com/gpu=GPU-a",), writable=True)
    closed = CdiFolderFacts(directories=directories, missing=(), writable=False)
    assert [judge_cdi_specs(facts, CDI_CRI).state for facts in (missing, closed)] == ["problem", "warning"]
    assert "defines nvidia.com/gpu=GPU-a" in judge_cdi_specs(missing, CDI_CRI).explanation
    assert judge_cdi_specs(missing, ENVVAR).state == "ok"


def test_the_allocation_mode_comes_with_its_reason() -> None:
    able = NodeAbilities(kubelet="v1.36.0", runtime="containerd://2.4.2")
    old = NodeAbilities(kubelet="v1.27.0", runtime="containerd://2.4.2")
    none, auto, slots = HamiScheduler.NONE, RequestedAllocation.AUTO, RequestedAllocation.SLOTS
    assert judge_allocation(auto, able, none, AllocationMode.SLOTS).state == "ok"
    assert judge_allocation(auto, able, none, None).state == "ok"
    assert brief(judge_allocation(auto, able, none, AllocationMode.IMMEDIATE))[0] == "warning"
    assert "kubelet is v1.27.0" in judge_allocation(auto, old, none, AllocationMode.IMMEDIATE).explanation
    assert judge_allocation(slots, old, none, None).state == "problem"
