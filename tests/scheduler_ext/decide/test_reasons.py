"""Reasons: codes on the wire, words for people."""

import dataclasses
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.cluster.snapshot import GpuUsage
from scheduler_ext.decide.misfit import Misfit, NotOffered
from scheduler_ext.decide.reasons import Reason, words_of
from scheduler_ext.requests import ContainerNeed
from tests.scheduler_ext.gpus import device

NEED = ContainerNeed(count=1, memory_mib=1, memory_percentage=None, cores=0)
OF_GPUS = [reason for reason in Reason if reason not in (Reason.UNREGISTERED, Reason.NOT_LOOKED_AT)]


def misfit(*reasons: Reason, need: ContainerNeed = NEED) -> Misfit:
    return Misfit(
        need=need,
        cards=len(reasons),
        verdicts=[(GpuUsage(device(number)), reason) for number, reason in enumerate(reasons)],
    )


def test_codes_of_reasons_on_the_wire_stay() -> None:
    assert {str(reason) for reason in Reason} == {
        *("node unregistered", "NodeInsufficientDevice", "CardNotHealth", "CardCordoned", "CardTypeMismatch"),
        *("CardUuidMismatch", "CardLimitsNotEnforced", "GroupMemberLost", "GroupDoesNotFit"),
        *(
            "NodeTotalExceeded",
            "NodeSetAside",
            "NumaNodesChange",
            "KubeletRefusedAlike",
            "CpusApartFromGpus",
            "CpusApartFromReplicas",
            "CardApartFromCpus",
            "ResourceQuotaNotFit",
        ),
        *("CardMigTopologyInfeasible", "CardInsufficientMemory", "CardInsufficientCore", "CardComputeUnitsExhausted"),
        *("CardTimeSlicingExhausted", "ExclusiveDeviceAllocateConflict", "NumaNotFit"),
        *("AllocatedCardsInsufficientRequest", "NotLookedAtYet"),
    }


def test_words_of_reasons_are_unique() -> None:
    assert len({reason.words for reason in Reason}) == len(Reason)


@given(st.lists(st.sampled_from(OF_GPUS), min_size=1, max_size=8))
def test_reasons_in_an_answer_of_filter_have_the_words_of_the_misfit(reasons: list[Reason]) -> None:
    found = misfit(*reasons)
    assert words_of(found.brief) == found.words()


@pytest.mark.parametrize("both", [*combinations([Reason.NOT_HEALTHY, Reason.CORDONED, Reason.MEMORY, Reason.CORES], 2)])
def test_the_more_important_of_two_reasons_comes_first(both: tuple[Reason, Reason]) -> None:
    assert misfit(both[1], both[0], both[1]).words() == (both[0].words, both[1].words)


def test_that_some_gpus_fit_is_no_reason_beside_why_others_do_not() -> None:
    assert misfit(Reason.TOO_FEW, Reason.MEMORY).words() == ("too little free memory",)
    assert misfit(Reason.TOO_FEW, Reason.TOO_FEW).words() == ("too few GPUs that fit",)


def test_gpus_out_of_service_are_named() -> None:
    found = misfit(Reason.NOT_HEALTHY, Reason.MEMORY, Reason.CORDONED, Reason.CORDONED)
    assert found.words(named=True) == ("GPU 0 is unhealthy", "GPU 2–3 are cordoned", "too little free memory")


def test_memory_that_no_gpu_has_is_the_reason_before_all_others() -> None:
    large = dataclasses.replace(NEED, memory_mib=10**6)
    found = misfit(Reason.MEMORY, Reason.NOT_HEALTHY, need=large)
    assert found.words() == ("no GPU is that large",)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("CardLimitsNotEnforced(no HAMi-core) 1/2 + CardInsufficientMemory 1/2", [Reason.LIMITS, Reason.MEMORY]),
        ("NodeTotalExceeded(nvidia.com/gpumem): the pods would ask for too much", "the pods would ask for too much"),
        ("GroupMemberLost(team/b)", [Reason.GROUP_MEMBER_LOST]),
        ("node unregistered", [Reason.UNREGISTERED]),
        ("node unregistered: node-nvidia-register: $[0]: expected int", "node-nvidia-register: $[0]: expected int"),
        ("Insufficient cpu", "Insufficient cpu"),
        ("container a: gpumem: 8Gi is no number", "container a: gpumem: 8Gi is no number"),
    ],
)
def test_reasons_of_nodes_have_words_and_other_text_stays(answer: str, words: list[Reason] | str) -> None:
    assert words_of(answer) == ((words,) if isinstance(words, str) else tuple(each.words for each in words))


def test_a_node_that_offers_nothing_gives_its_own_reason() -> None:
    assert NotOffered("node unregistered: its kubelet offers none").words() == ("its kubelet offers none",)
