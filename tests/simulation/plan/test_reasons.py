"""Reasons of the extender, in a plan's words."""

from itertools import pairwise

import pytest

from scheduler_ext.cluster.snapshot import GpuUsage
from scheduler_ext.decide.misfit import Misfit, Reason
from scheduler_ext.outlook.words import WORDS
from scheduler_ext.requests import ContainerNeed
from simulation.plan.reasons import counted
from tests.scheduler_ext.gpus import device

NEED = ContainerNeed(count=1, memory_mib=1, memory_percent=None, cores=0)
OF_GPUS = [reason for reason in WORDS if reason is not Reason.TOO_FEW]


def misfit(*reasons: Reason) -> Misfit:
    return Misfit(
        need=NEED,
        cards=len(reasons),
        verdicts=[(GpuUsage(device(number)), reason) for number, reason in enumerate(reasons)],
    )


@pytest.mark.parametrize("reason", WORDS)
def test_each_reason_has_plain_words(reason: Reason) -> None:
    assert counted({misfit(reason, reason).brief: 3}) == [(WORDS[reason], 3)]


@pytest.mark.parametrize("both", list(pairwise(OF_GPUS)))
def test_a_node_whose_gpus_fail_for_several_reasons_counts_for_each(both: tuple[Reason, Reason]) -> None:
    assert sorted(counted({misfit(*both, both[0]).brief: 2})) == sorted((WORDS[reason], 2) for reason in both)


def test_that_too_few_gpus_fit_tells_less_than_why_the_others_do_not() -> None:
    found = counted({misfit(Reason.TOO_FEW, Reason.MEMORY, Reason.LIMITS).brief: 1})
    assert sorted(found) == sorted([(WORDS[Reason.MEMORY], 1), (WORDS[Reason.LIMITS], 1)])
