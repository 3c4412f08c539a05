from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.misfit import NotOffered
from scheduler_ext.decide.priorities import preferences, priorities
from scheduler_ext.decide.score import NodeScore
from scheduler_ext.policies import NodePolicy


def scored(policy: NodePolicy, decision: Decision) -> dict[str, int]:
    return dict(priorities(preferences(policy, decision).values()))


def decision(connections: dict[str, int] | None = None, **totals: float) -> Decision:
    fits = {name: NodeScore(total=total, replicas=0, cores=0, memory=0) for name, total in totals.items()}
    return Decision(node="any", fits=fits, misfits={"no": NotOffered("x")}, connections=connections or {})


def test_the_node_that_would_be_taken_scores_10_and_a_misfit_nothing() -> None:
    assert scored(NodePolicy.BINPACK, decision(full=6.0, half=3.0, empty=0.0)) == {
        "full": 10,
        "half": 6,
        "empty": 1,
    }
    assert scored(NodePolicy.SPREAD, decision(full=6.0, empty=0.0)) == {"empty": 10, "full": 1}


def test_equally_good_nodes_score_the_same() -> None:
    assert scored(NodePolicy.SPREAD, decision(a=1.0, b=1.0)) == {"a": 10, "b": 10}


def test_links_go_before_the_score() -> None:
    linked = decision({"linked": 400, "other": 20}, linked=0.0, other=9.0)
    assert scored(NodePolicy.BINPACK, linked) == {"linked": 10, "other": 1}
