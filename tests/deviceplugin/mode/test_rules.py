from dataclasses import replace

import pytest

from deviceplugin.mode.rules import NodeAbilities, SlotsUnsupported, choose
from deviceplugin.settings import HamiScheduler, RequestedAllocation
from proto.annotations.node_allocation import AllocationMode

AUTO, SLOTS, IMMEDIATE = RequestedAllocation
MODERN = NodeAbilities(kubelet="v1.36.0", runtime="containerd://2.4.2")


def node(
    kubelet: str = "v1.29.0",
    runtime: str = "containerd://2.3.0",
    *,
    cdi_problem: str = "",
    pod_resources_problem: str = "",
) -> NodeAbilities:
    return NodeAbilities(
        kubelet=kubelet,
        runtime=runtime,
        cdi_problem=cdi_problem,
        pod_resources_problem=pod_resources_problem,
    )


@pytest.mark.parametrize(
    "able",
    [
        node(),
        node("v1.36.0", "cri-o://1.36.1"),
        replace(node(runtime="containerd://1.7.29"), enable_cdi=True),
        replace(node(runtime="containerd://2.1.4"), by_slots=True),
    ],
)
def test_auto_takes_slots_where_kubelet_and_runtime_apply_cdi_devices(able: NodeAbilities) -> None:
    mode, sentence = choose(AUTO, able)
    assert mode is AllocationMode.SLOTS
    assert sentence == (
        f"Allocation is by slots: kubelet {able.kubelet} and {able.runtime} apply CDI devices, "
        "and pod-resources answers."
    )


@pytest.mark.parametrize(
    ("unable", "why"),
    [
        (node(kubelet="v1.28.15"), "kubelet is v1.28.15, CDI devices need 1.29"),
        (
            replace(node(runtime="containerd://2.1.4"), enable_cdi=False, by_slots=True),
            "the container runtime is containerd://2.1.4 with enable_cdi = false in its configuration",
        ),
        (
            node(runtime="docker://24.0.7"),
            "the container runtime docker://24.0.7 is not known to apply CDI devices",
        ),
        (
            node(cdi_problem="the CDI folder /x cannot be written: Read-only"),
            "the CDI folder /x cannot be written: Read-only",
        ),
        (node(pod_resources_problem="pod-resources is deaf"), "pod-resources is deaf"),
    ],
)
def test_auto_is_immediate_elsewhere_and_says_why(unable: NodeAbilities, why: str) -> None:
    assert choose(AUTO, unable) == (AllocationMode.IMMEDIATE, f"Allocation is immediate: {why}.")


@pytest.mark.parametrize(
    "able", [node(runtime="containerd://2.2.9"), replace(node(runtime="containerd://1.7.29"), by_slots=True)]
)
def test_auto_is_immediate_where_containers_might_start_without_their_slot(able: NodeAbilities) -> None:
    mode, sentence = choose(AUTO, able)
    assert mode is AllocationMode.IMMEDIATE
    assert f"{able.runtime} starts containers without their CDI devices" in sentence
    assert "mount its socket (criSocket of the chart), or use containerd 2.3" in sentence


def test_immediate_is_obeyed() -> None:
    assert choose(IMMEDIATE, MODERN) == (AllocationMode.IMMEDIATE, "Allocation is immediate, as configured.")


@pytest.mark.parametrize("able", [MODERN, node(runtime="containerd://1.7.0"), node(runtime="other://3.1")])
def test_slots_are_obeyed_where_nothing_speaks_against_them(able: NodeAbilities) -> None:
    assert choose(SLOTS, able) == (AllocationMode.SLOTS, "Allocation is by slots, as configured.")


@pytest.mark.parametrize(
    "unable",
    [
        node("v1.28.0"),
        node(runtime="containerd://1.6.20"),
        node(runtime="cri-o://1.33.2"),
        replace(node(runtime="containerd://1.7.29"), enable_cdi=False),
        node(cdi_problem="no folder"),
        node(pod_resources_problem="pod-resources is deaf"),
    ],
)
def test_slots_that_cannot_be_are_an_error(unable: NodeAbilities) -> None:
    with pytest.raises(SlotsUnsupported, match="Allocation by slots is not possible on this node: "):
        choose(SLOTS, unable)


def test_slots_in_use_outlast_what_may_pass_but_not_a_runtime_that_never_can() -> None:
    ill = replace(MODERN, cdi_problem="the disk is full", by_slots=True)
    stays = "Allocation stays by slots, but no container can start at the moment: the disk is full."
    assert choose(AUTO, ill) == choose(SLOTS, ill) == (AllocationMode.SLOTS, stays)
    assert choose(AUTO, replace(ill, kubelet="v1.20.0"))[0] is AllocationMode.IMMEDIATE


@pytest.mark.parametrize("scheduler", [HamiScheduler.V2_4, HamiScheduler.V2_7, HamiScheduler.V2_9])
def test_under_hamis_scheduler_somebody_must_tell_it_who_was_served(scheduler: HamiScheduler) -> None:
    mode, sentence = choose(AUTO, MODERN, scheduler)
    assert mode is AllocationMode.IMMEDIATE
    assert "HAMi's scheduler locks the node" in sentence
