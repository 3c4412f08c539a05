"""What the engine of a plan remembers of refusals, and the groups that it knows."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.objects import (
    GangPolicy,
    GroupSchedulingPolicy,
    ObjectMeta,
    PodGroup,
    PodGroupSpec,
    SchedulingGroup,
)
from simulation.plan.engine import Engine, Placed
from simulation.plan.machines import read_cluster
from simulation.plan.objects import arrival_of
from simulation.plan.question import Question
from simulation.words import HostPolicy
from tests.builders import container, pod

NODES = "1x:4x-a100,1x:1x-t4"
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=24)


def engine(groups: tuple[PodGroup, ...] = ()) -> Engine:
    cluster = replace(read_cluster(NODES), groups=groups)
    return Engine(cluster, Question(cluster=cluster).under("binpack/spread"), HostPolicy.LEAST_ALLOCATED)


@given(STEPS)
def test_a_remembered_refusal_is_what_a_new_question_would_be_answered(steps: list[tuple[bool, int]]) -> None:
    there, held = engine(), list[str]()
    for number, (ends, gpus) in enumerate(steps):
        uid = f"uid-{number}"
        if ends and held:
            there.end(held.pop(gpus % len(held)), float(number))
            continue
        arrival = arrival_of(pod(container(cpu=90, gpu=gpus) if gpus else container(cpu=90), name=f"asks-{gpus}"))
        if isinstance(there.place(arrival, uid, float(number)), Placed):
            held.append(uid)
        else:
            refusal = there.refusal(arrival, uid, float(number))
            assert refusal is not None
            assert sum(refusal.nodes.values()) == 2


def test_a_group_starts_whole_or_not_at_all() -> None:
    gang = GroupSchedulingPolicy(gang=GangPolicy(min_count=3))
    group = PodGroup(metadata=ObjectMeta(name="train", namespace="default"), spec=PodGroupSpec(scheduling_policy=gang))
    alone, together = engine(), engine((group,))
    members = [
        arrival_of(
            pod(container(gpu=2), name=f"train-{number}", scheduling_group=SchedulingGroup(pod_group_name="train"))
        )
        for number in range(3)
    ]
    placed = [[isinstance(one.place(each, each.name, 0.0), Placed) for each in members] for one in (alone, together)]
    assert placed == [[True, True, False], [False, False, False]]
