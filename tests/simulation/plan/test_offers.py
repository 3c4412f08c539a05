"""Nodes that kube-scheduler offers for a pod, and why not the others."""

from collections import Counter

import msgspec
import pytest

from proto.kubernetes.objects import Node
from scheduler_ext.requests import ResourceNames
from simulation.plan.objects import Constraints, WholePod, constraints_of
from simulation.plan.offers import NodeOffers, left_to_extender, node_problem
from simulation.words import HostPolicy

MANAGED = left_to_extender(ResourceNames())


def whole_node(name: str, **more: object) -> Node:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "2", "example.com/nic": "1"}
    spec = {"spec": more.pop("spec", {})}
    document = {"metadata": {"name": name, **more}, "status": {"allocatable": allocatable}, **spec}
    return msgspec.convert(document, Node)


def whole_pod(spec: object = None, cpu: str = "1", **others: str) -> WholePod:
    requests = {"cpu": cpu, "memory": "1Gi", **others}
    container = {"name": "c", "resources": {"requests": requests}}
    own = spec if isinstance(spec, dict) else {}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": [container], **own}}, WholePod)


def test_what_pods_take_is_left_to_no_other_and_comes_back() -> None:
    offers = NodeOffers([whole_node("a"), whole_node("b")], MANAGED, HostPolicy.LEAST_ALLOCATED)
    large, nothing = offers.request_of(whole_pod(cpu="3")), Constraints()
    offers.take("a", large)
    assert offers.offered(nothing, large) == ["b"]
    assert offers.refusals(nothing, large) == Counter({"Insufficient cpu": 1})
    offers.give("a", large)
    assert offers.offered(nothing, large) == ["a", "b"]


def test_the_number_of_pods_and_other_resources_end_too() -> None:
    offers = NodeOffers([whole_node("a")], MANAGED, HostPolicy.LEAST_ALLOCATED)
    small = offers.request_of(whole_pod(cpu="1m"))
    with_nic = offers.request_of(whole_pod(cpu="1m", **{"example.com/nic": "1"}))
    offers.take("a", with_nic)
    assert offers.refusals(Constraints(), with_nic) == Counter({"Insufficient example.com/nic": 1})
    offers.take("a", small)
    assert offers.refusals(Constraints(), small) == Counter({"Too many pods": 1})


def test_pods_without_gpus_go_to_the_emptiest_or_the_fullest_node() -> None:
    for policy, best in ((HostPolicy.LEAST_ALLOCATED, "b"), (HostPolicy.MOST_ALLOCATED, "a")):
        offers = NodeOffers([whole_node("a"), whole_node("b")], MANAGED, policy)
        offers.take("a", offers.request_of(whole_pod()))
        assert offers.best_for_hosts(["a", "b"]) == best


SELECTED = {"labels": {"zone": "z1", "size": "8"}}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"zone": "z1"}}, True),
        ({"nodeSelector": {"zone": "z2"}}, False),
        ({"rules": [{"key": "zone", "operator": "In", "values": ["z1", "z3"]}]}, True),
        ({"rules": [{"key": "zone", "operator": "NotIn", "values": ["z1"]}]}, False),
        ({"rules": [{"key": "zone", "operator": "Exists"}, {"key": "other", "operator": "DoesNotExist"}]}, True),
        ({"rules": [{"key": "size", "operator": "Gt", "values": ["7"]}]}, True),
        ({"rules": [{"key": "size", "operator": "Lt", "values": ["8"]}]}, False),
        ({"rules": [{"key": "other", "operator": "Gt", "values": ["7"]}]}, False),
        ({"rules": [{"key": "size", "operator": "Gt", "values": ["²"]}]}, False),
        ({"rules": [{"key": "size", "operator": "Lt", "values": ["9" * 5000]}]}, False),
        ({"rules": []}, False),
    ],
)
def test_selectors_and_required_affinity(spec: dict[str, object], fits: bool) -> None:
    if "rules" in spec:
        required = {"nodeSelectorTerms": [{"matchExpressions": spec["rules"]}]}
        spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    assert (node_problem(whole_node("n", **SELECTED), constraints_of(whole_pod(spec))) == "") == fits


def test_taints_need_a_toleration() -> None:
    tainted = whole_node("n", spec={"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]})
    assert node_problem(tainted, Constraints()) == "node(s) had untolerated taint {gpu: yes}"
    for toleration in ({"key": "gpu", "value": "yes"}, {"key": "gpu", "operator": "Exists"}, {"operator": "Exists"}):
        assert not node_problem(tainted, constraints_of(whole_pod({"tolerations": [toleration]})))
    assert node_problem(whole_node("n", spec={"unschedulable": True}), Constraints()) == "node(s) were unschedulable"
