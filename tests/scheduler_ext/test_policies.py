import pytest

from proto.annotations import keys
from scheduler_ext.policies import (
    NodePolicy,
    Policies,
    PolicyError,
    SortKey,
    Weights,
    parse_gpu_policy,
    parse_node_policy,
    read_policies,
)


def read(**annotations: str) -> Policies:
    return read_policies(annotations, NodePolicy.BINPACK, parse_gpu_policy("spread"))


@pytest.mark.parametrize("text", ["binpack", "spread", "topology-aware", "mutex", "numa", "binpack, topology-aware"])
def test_flags_accept_the_known_words(text: str) -> None:
    assert parse_gpu_policy(text).text == text


@pytest.mark.parametrize("text", ["", "bogus", " binpack", "binpack,bogus"])
def test_flags_refuse_other_words(text: str) -> None:
    with pytest.raises(PolicyError, match="unknown GPU policy"):
        parse_gpu_policy(text)
    with pytest.raises(PolicyError, match="write binpack, spread, fgd"):
        parse_node_policy(text)


def test_topology_is_read_as_topology_aware_with_a_warning() -> None:
    policies = read(**{keys.GPU_POLICY: "topology"})
    assert policies.gpu.topology_aware
    assert policies.warnings == (f"{keys.GPU_POLICY}: 'topology' is read as 'topology-aware'; write that",)


@pytest.mark.parametrize("text", ["bogus", "", " binpack", "bogus,nonsense", ","])
def test_a_pod_that_names_no_policy_is_placed_by_the_clusters(text: str) -> None:
    annotations = {keys.GPU_POLICY: text, keys.NODE_POLICY: text}
    policies = read_policies(annotations, NodePolicy.SPREAD, parse_gpu_policy("binpack"))
    assert (policies.node, policies.gpu) == (NodePolicy.SPREAD, parse_gpu_policy("binpack"))


def test_every_unknown_word_is_warned_of() -> None:
    warnings = read(**{keys.GPU_POLICY: "bogus", keys.NODE_POLICY: "Spread"}).warnings
    assert warnings == (
        f"{keys.NODE_POLICY}: unknown node policy 'Spread'; placed by the cluster's, binpack",
        f"{keys.GPU_POLICY}: unknown GPU policy 'bogus'; placed by the cluster's, spread",
    )


def test_an_unknown_word_in_a_list_leaves_the_others_in_force() -> None:
    policies = read(**{keys.GPU_POLICY: "binpack,bogus"})
    assert policies.gpu.keys == parse_gpu_policy("binpack,").keys
    assert policies.warnings == (f"{keys.GPU_POLICY}: unknown GPU policy 'bogus'; ignored",)


def test_a_comma_list_is_a_chain_of_keys_with_the_index_last() -> None:
    policy = parse_gpu_policy("numa, binpack,mutex,numa")
    assert policy.keys == (SortKey.NUMA, SortKey.SCORE, SortKey.INDEX)
    assert policy.idle_only
    assert parse_gpu_policy("binpack,numa").bound_keys == (SortKey.NUMA, SortKey.SCORE, SortKey.INDEX)


def test_weights_may_hold_blanks_and_come_in_any_order() -> None:
    weights = read(**{keys.SCORING_WEIGHTS: " memory = 3,slot=0, core=5"}).weights
    assert weights == Weights(replicas=0, cores=5, memory=3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slot=1,core=1",
        "slot=1,core=1,memory=-1",
        "slot=0,core=0,memory=0",
        "slot=1,slot=2,core=1",
        "slot=1,core=1,memory=1,x=1",
        "slot=1,core=1,memory=9223372036854775808",
        "slot=1,core=1,memory=1.5",
    ],
)
def test_bad_weights_are_refused(text: str) -> None:
    with pytest.raises(PolicyError, match=keys.SCORING_WEIGHTS):
        read(**{keys.SCORING_WEIGHTS: text})
