from proto.annotations import keys
from proto.kubernetes.objects import Notice
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.verbs.filter_decision import FilterAnswer, FilterDecision
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request


def decision(cluster: Cluster) -> FilterDecision:
    return FilterDecision(NodeIndex(cluster.ledger), cluster, 60.0)


def filtered(**annotations: str) -> FilterAnswer:
    cluster = Cluster()
    cluster.ledger.replace_nodes([node("n", [device(0)])])
    wanted = pod(container(gpu=1), annotations={getattr(keys, key): text for key, text in annotations.items()})
    return decision(cluster).reserve(wanted, request(wanted), ["n"], 0.0)


def test_each_unknown_policy_word_is_an_event_of_its_own_and_the_pod_is_placed() -> None:
    answer = filtered(NODE_POLICY="bogus", GPU_POLICY="nonsense")
    assert answer.result.node_names == ["n"]
    assert answer.notices()[:-1] == (
        Notice(
            reason="UnknownPolicy",
            message=f"{keys.NODE_POLICY}: unknown node policy 'bogus'; placed by the cluster's, binpack",
            distinct=True,
        ),
        Notice(
            reason="UnknownPolicy",
            message=f"{keys.GPU_POLICY}: unknown GPU policy 'nonsense'; placed by the cluster's, spread",
            distinct=True,
        ),
    )


def test_of_a_reason_that_many_nodes_have_the_first_are_named() -> None:
    names = [f"n{number:02d}" for number in range(25)]
    cluster = Cluster()
    cluster.ledger.replace_nodes([node(name, [device(0, memory_mib=100)]) for name in names])
    wanted = pod(container(gpu=1, gpumem=1000))
    answer = decision(cluster).reserve(wanted, request(wanted), names[::-1], 0.0)
    assert answer.notices()[0].message == (
        f"no available node, 25 nodes do not meet: 25 nodes ({','.join(names[:5])},…): no GPU is that large"
    )
    assert answer.result.failed_and_unresolvable_nodes == dict.fromkeys(names, "CardInsufficientMemory")


def test_an_event_says_what_to_do_where_nothing_limits_a_container() -> None:
    cluster = Cluster()
    unlimited = node("a", [device(0)])
    unlimited.metadata.annotations[keys.NODE_LIMITS] = "none"
    cluster.ledger.replace_nodes([unlimited, node("b", [device(0, memory_mib=100)])])
    wanted = pod(container(gpu=1, gpumem=1000))
    answer = decision(cluster).reserve(wanted, request(wanted), ["a", "b"], 0.0)
    assert answer.notices()[0].message == (
        "no available node, 2 nodes do not meet: "
        "1 node (b): no GPU is that large; 1 node (a): nothing holds the container to a part of a GPU. "
        "Ask for whole GPUs, install HAMi-core or a driver of release 615 on the nodes, or add unenforced to limits of "
        "their daemons"
    )
