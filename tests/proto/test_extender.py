import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.extender import (
    MOST_NODES,
    BindingArgs,
    BindingResult,
    ExtenderError,
    FilterResult,
    HostPriority,
    NodeVictims,
    decode_binding_args,
    decode_extender_args,
    decode_preemption_args,
    encode_binding_result,
    encode_filter_result,
    encode_host_priorities,
    encode_preemption_result,
)
from proto.kubernetes.objects import Node, ObjectMeta

POD = {
    "metadata": {"name": "train", "namespace": "ml", "uid": "u1", "creationTimestamp": None},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}], "volumes": []},
    "status": {},
}


def test_a_node_cache_capable_scheduler_sends_names() -> None:
    args = decode_extender_args(json.dumps({"Pod": POD, "Nodes": None, "NodeNames": ["node-a", "node-b"]}).encode())
    assert (args.pod.metadata.name, args.pod.metadata.namespace, args.pod.metadata.uid) == ("train", "ml", "u1")
    assert args.pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "2"}
    assert (args.nodes, args.node_names) == (None, ["node-a", "node-b"])


def test_any_other_scheduler_sends_whole_nodes() -> None:
    body = {"Pod": POD, "Nodes": {"metadata": {}, "items": [{"metadata": {"name": "node-a"}}]}, "NodeNames": None}
    args = decode_extender_args(json.dumps(body).encode())
    assert (args.nodes, args.node_names) == ([Node(metadata=ObjectMeta(name="node-a"))], None)


@pytest.mark.parametrize("spelling", [str.lower, str.upper, str.swapcase, lambda name: name[0].lower() + name[1:]])
def test_keys_are_read_in_any_case_as_go_reads_them(spelling: Callable[[str], str]) -> None:
    body = {spelling("Pod"): POD, spelling("NodeNames"): ["n"], "somethingElse": {"deep": [1]}}
    assert decode_extender_args(json.dumps(body).encode()).node_names == ["n"]
    bind = {spelling("PodName"): "p", spelling("PodNamespace"): "ns", spelling("PodUID"): "u", spelling("Node"): "n"}
    assert decode_binding_args(json.dumps(bind).encode()) == BindingArgs(
        pod_name="p", pod_namespace="ns", pod_uid="u", node="n"
    )


def test_however_names_are_sent_they_are_read_alike() -> None:
    """As kube-scheduler does; with a key that it does not know yet; with a null where Go would leave the field out."""
    plain = {"Pod": POD, "Nodes": None, "NodeNames": ["n"]}
    bodies = (plain, {**plain, "Later": 1}, {**plain, "Pod": {**POD, "status": {"phase": None}}})
    first, *others = (decode_extender_args(json.dumps(body).encode()) for body in bodies)
    assert others == [first, first]


@pytest.mark.parametrize("field", ["NodeNames", "nodenames"])
def test_more_nodes_than_any_cluster_has_are_refused(field: str) -> None:
    body = json.dumps({"Pod": POD, field: ["n"] * (MOST_NODES + 1)}).encode()
    with pytest.raises(ExtenderError, match=r"^\$\.NodeNames: Expected `array` of length <= 100000$"):
        decode_extender_args(body)


@pytest.mark.parametrize("form", ["Nodes", "NodeNames"])
def test_an_empty_cluster_is_not_the_other_form(form: str) -> None:
    empty: object = {"items": None} if form == "Nodes" else []
    args = decode_extender_args(json.dumps({"Pod": POD, form: empty}).encode())
    assert (args.nodes, args.node_names) == (([], None) if form == "Nodes" else (None, []))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", "$: the body is empty"),
        ("[]", "$: expected an object"),
        ("null", "$: expected an object"),
        ("{}", "$.Pod: missing"),
        ('{"Pod":null}', "$.Pod: missing"),
        ('{"Pod":[]}', "$.Pod: Expected `object`, got `array`"),
        ('{"Pod":{"metadata":{"name":3}}}', "$.Pod.metadata.name: Expected `str`, got `int`"),
        ('{"Pod":{},"NodeNames":"a"}', "$.NodeNames: Expected `array`, got `str`"),
        ('{"Pod":{},"NodeNames":["a",1]}', "$.NodeNames[1]: Expected `str`, got `int`"),
        ('{"Pod":{},"Nodes":[]}', "$.Nodes: Expected `object`, got `array`"),
        (
            '{"Pod":{},"Nodes":{"items":[{},{"metadata":{"labels":[]}}]}}',
            "$.Nodes.items[1].metadata.labels: Expected `object`, got `array`",
        ),
    ],
)
def test_the_wrong_shape_is_named_by_its_path(body: str, error: str) -> None:
    with pytest.raises(ExtenderError) as caught:
        decode_extender_args(body.encode())
    assert str(caught.value) == error


@pytest.mark.parametrize(
    "body", [b"{", b'{"Pod":', b"\xff\xfe", b'{"Pod":{}} trailing', b'{"Pod":{"x":' + b"[" * 99999]
)
def test_what_is_not_json_is_said_so(body: bytes) -> None:
    with pytest.raises(ExtenderError, match=r"^\$(\.Pod)?: "):
        decode_extender_args(body)


@pytest.mark.parametrize("name", ["PodName", "PodNamespace", "Node"])
def test_a_bind_request_must_say_who_goes_where(name: str) -> None:
    body = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n"}
    del body[name]
    with pytest.raises(ExtenderError, match=rf"^\$\.{name}: missing$"):
        decode_binding_args(json.dumps(body).encode())


def test_a_filter_reply_always_has_all_five_keys() -> None:
    assert encode_filter_result(FilterResult(node_names=["node-b"])) == (
        b'{"Nodes":null,"NodeNames":["node-b"],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
    )
    full = FilterResult(
        nodes=[Node(metadata=ObjectMeta(name="a"))],
        node_names=(),
        failed_nodes={"b": "no free GPU"},
        failed_and_unresolvable_nodes={"c": "not registered"},
        error="stop",
    )
    assert json.loads(encode_filter_result(full)) == {
        "Nodes": {"metadata": {}, "items": [{"metadata": {"name": "a"}, "spec": {}, "status": {"nodeInfo": {}}}]},
        "NodeNames": [],
        "FailedNodes": {"b": "no free GPU"},
        "FailedAndUnresolvableNodes": {"c": "not registered"},
        "Error": "stop",
    }


def test_other_replies_are_capitalised_too() -> None:
    assert encode_binding_result(BindingResult()) == b'{"Error":""}'
    assert encode_binding_result(BindingResult("no lock")) == b'{"Error":"no lock"}'
    assert encode_host_priorities([HostPriority("n", 10)]) == b'[{"Host":"n","Score":10}]'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["Pod", "pod", "Nodes", "NodeNames", "metadata"]), JSON))
def test_any_json_is_read_or_refused_with_a_path(body: object) -> None:
    where = "$"
    try:
        decode_extender_args(json.dumps(body).encode())
    except ExtenderError as error:
        where = error.where
    assert where.startswith("$")


@pytest.mark.parametrize(
    "by_node",
    [
        {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u2"}, {"UID": "u3"}], "NumPDBViolations": 1}}},
        {
            "NodeNameToVictims": {
                "a": {"Pods": [{"metadata": {"uid": "u2"}}, {"metadata": {"uid": "u3"}}], "NumPDBViolations": 1}
            },
            "NodeNameToMetaVictims": None,
        },
    ],
)
def test_victims_are_read_as_uids_and_as_whole_pods(by_node: dict[str, object]) -> None:
    args = decode_preemption_args(json.dumps({"Pod": POD, **by_node}).encode())
    assert args.victims == {"a": NodeVictims(uids=("u2", "u3"), pdb_violations=1)}


def test_victims_are_answered_in_gos_spelling() -> None:
    answer = json.loads(encode_preemption_result({"a": NodeVictims(uids=("u2",), pdb_violations=1)}))
    assert answer == {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 1}}}


@pytest.mark.parametrize(
    ("by_node", "where"),
    [
        ({}, "$.NodeNameToMetaVictims: missing"),
        ({"NodeNameToMetaVictims": {"a": 7}}, "$.NodeNameToMetaVictims['a']: "),
        ({"NodeNameToMetaVictims": {"a": {"Pods": [{}]}}}, "$.NodeNameToMetaVictims['a'].Pods[0].UID: missing"),
    ],
)
def test_victims_of_another_shape_are_refused_with_the_place(by_node: dict[str, object], where: str) -> None:
    with pytest.raises(ExtenderError) as refusal:
        decode_preemption_args(json.dumps({"Pod": POD, **by_node}).encode())
    assert str(refusal.value).startswith(where)
