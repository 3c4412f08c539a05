"""Reasons of the extender and of kube-scheduler, counted for a plan."""

from scheduler_ext.decide.reasons import Reason
from simulation.plan.outcome import counted


def test_a_node_whose_gpus_fail_for_several_reasons_counts_for_each() -> None:
    nodes = {"CardNotHealth 1/2 + CardInsufficientMemory 1/2": 2, "CardInsufficientMemory": 3, "Insufficient cpu": 1}
    assert counted(nodes) == [(Reason.MEMORY.words, 5), (Reason.NOT_HEALTHY.words, 2), ("too little CPU", 1)]
