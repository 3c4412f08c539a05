from tests.index import by_noun


def test_the_index_has_each_noun_of_a_test_and_of_its_file() -> None:
    lease = ("tests/scheduler_ext/test_lease.py", "test_a_leader_keeps_the_policies")
    index = by_noun([lease])
    assert {noun: index.get(noun) for noun in ("lease", "leader", "policy", "the")} == {
        "lease": [lease],
        "leader": [lease],
        "policy": [lease],
        "the": None,
    }
