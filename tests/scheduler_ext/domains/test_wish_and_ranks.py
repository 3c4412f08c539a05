import pytest

from proto.annotations import keys
from scheduler_ext.domains.levels import (
    LEVELS,
    DomainWish,
    WishError,
    domains_of,
    rank_of,
    read_levels,
    read_wish,
    word,
    write_levels,
)
from simulation.plan.recorded import labels_of

RACK = "cloud.provider.com/topology-rack"


def test_what_is_required_comes_before_what_is_preferred_and_our_words_before_kueues() -> None:
    ours, kueues = keys.PREFERRED_TOPOLOGY, keys.KUEUE_REQUIRED_TOPOLOGY
    assert read_wish({}, LEVELS) is None
    assert read_wish({kueues: RACK}, LEVELS) == DomainWish(RACK, required=True)
    assert read_wish({kueues: RACK, ours: keys.NODE_CLIQUE}, LEVELS) == DomainWish(keys.NODE_CLIQUE, required=False)
    both = {keys.REQUIRED_TOPOLOGY: RACK, keys.PREFERRED_TOPOLOGY: keys.NODE_CLIQUE}
    assert read_wish(both, LEVELS) == DomainWish(RACK, required=True)


def test_a_level_that_is_not_set_is_refused_in_our_words_and_passed_over_in_kueues() -> None:
    with pytest.raises(WishError, match=r"'rack' is no level of domains here; the levels are .*gpu\.clique"):
        read_wish({keys.REQUIRED_TOPOLOGY: "rack"}, LEVELS)
    assert read_wish({keys.KUEUE_REQUIRED_TOPOLOGY: "rack"}, LEVELS) is None


def test_a_domain_is_named_within_the_wider_ones() -> None:
    labels = {"topology.kubernetes.io/zone": "z", RACK: "r1", keys.NODE_CLIQUE: "f.1", "other": "x"}
    found = {"topology.kubernetes.io/zone": "z", RACK: "z/r1", keys.NODE_CLIQUE: "f.1"}
    assert domains_of(labels, LEVELS) == found
    assert domains_of(labels_of(found), LEVELS) == found


@pytest.mark.parametrize(("level", "expected"), [(RACK, "rack"), (keys.NODE_CLIQUE, "clique"), (LEVELS[-1], "node")])
def test_a_level_has_a_word_for_people(level: str, expected: str) -> None:
    assert word(level) == expected


def test_levels_are_a_comma_list_of_labels() -> None:
    assert read_levels(write_levels(LEVELS)) == LEVELS
    assert read_levels("") == ()
    for text in ("a b", "a,,b", "a,a"):
        with pytest.raises(ValueError, match="label"):
            read_levels(text)


@pytest.mark.parametrize(
    "labels",
    [
        [{"batch.kubernetes.io/job-completion-index": str(n)} for n in (0, 2, 10)],
        [
            {"leaderworkerset.sigs.k8s.io/group-index": g, "leaderworkerset.sigs.k8s.io/worker-index": w}
            for g, w in (("0", "1"), ("1", "0"), ("1", "1"))
        ],
        [
            {"jobset.sigs.k8s.io/job-global-index": j, "batch.kubernetes.io/job-completion-index": i}
            for j, i in (("0", "7"), ("1", "0"), ("1", "1"))
        ],
        [
            {"training.kubeflow.org/replica-type": t, "training.kubeflow.org/replica-index": i}
            for t, i in (("master", "0"), ("worker", "0"), ("worker", "11"))
        ],
    ],
)
def test_pods_of_a_group_are_in_the_order_of_their_indices(labels: list[dict[str, str]]) -> None:
    ranks = [rank_of(name, each) for name, each in zip("zyx", labels, strict=True)]
    assert ranks == sorted(ranks)


def test_pods_without_indices_are_in_the_order_of_the_numbers_in_their_names() -> None:
    assert sorted(["w-10", "w-9", "v-11"], key=lambda name: rank_of(name, {})) == ["v-11", "w-9", "w-10"]
