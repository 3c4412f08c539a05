from scheduler_ext.decide.score import Preference, preference
from scheduler_ext.policies import NodePolicy
from scheduler_ext.verbs.prioritize import priorities


def fitting(policy: NodePolicy, connections: dict[str, int] | None = None, **totals: float) -> list[Preference]:
    return [preference(policy, name, total, (connections or {}).get(name, 0)) for name, total in totals.items()]


def test_the_node_that_would_be_taken_scores_10() -> None:
    assert priorities(fitting(NodePolicy.BINPACK, full=6.0, half=3.0, empty=0.0)) == {"full": 10, "half": 6, "empty": 1}
    assert priorities(fitting(NodePolicy.SPREAD, full=6.0, empty=0.0)) == {"empty": 10, "full": 1}


def test_equally_good_nodes_score_the_same() -> None:
    assert priorities(fitting(NodePolicy.SPREAD, a=1.0, b=1.0)) == {"a": 10, "b": 10}


def test_links_go_before_the_score() -> None:
    linked = fitting(NodePolicy.BINPACK, {"linked": 400, "other": 20}, linked=0.0, other=9.0)
    assert priorities(linked) == {"linked": 10, "other": 1}
