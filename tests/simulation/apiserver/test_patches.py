from typing import Any

import pytest

from simulation.apiserver.errors import ApiRefusal
from simulation.apiserver.patches import json_patch, merge, strategic


def test_a_merge_patch_deletes_with_null_and_replaces_lists() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "l": [1, 2]}, {"a": {"b": None}, "l": [3]}) == {"a": {"c": 2}, "l": [3]}


def test_a_strategic_patch_merges_conditions_by_type() -> None:
    before = {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "False"}]}
    patch = {
        "$setElementOrder/conditions": [{"type": "Disk"}, {"type": "Ready"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    assert strategic(before, patch) == {
        "conditions": [{"type": "Disk", "status": "False"}, {"type": "Ready", "status": "True"}]
    }


def test_a_strategic_patch_merges_env_inside_containers_by_name() -> None:
    before = {"containers": [{"name": "a", "image": "x", "env": [{"name": "E", "value": "1"}]}]}
    patch = {"containers": [{"name": "a", "env": [{"name": "F", "value": "2"}, {"name": "E", "$patch": "delete"}]}]}
    assert strategic(before, patch) == {
        "containers": [{"name": "a", "image": "x", "env": [{"name": "F", "value": "2"}]}]
    }


def test_taints_are_replaced_whole_as_the_api_declares_them_atomic() -> None:
    assert strategic({"taints": [{"key": "a"}, {"key": "b"}]}, {"taints": [{"key": "b"}]}) == {"taints": [{"key": "b"}]}


def test_a_strategic_patch_adds_and_deletes_single_finalizers() -> None:
    assert strategic({"finalizers": ["a"]}, {"finalizers": ["b"]}) == {"finalizers": ["b", "a"]}
    patch = {"$deleteFromPrimitiveList/finalizers": ["a"]}
    assert strategic({"finalizers": ["a", "b"]}, patch) == {"finalizers": ["b"]}


def test_a_strategic_item_without_its_merge_key_is_refused() -> None:
    with pytest.raises(ApiRefusal, match="merge key: name"):
        strategic({}, {"containers": [{"image": "x"}]})


def test_a_json_patch_tests_adds_moves_and_removes() -> None:
    operations: list[dict[str, Any]] = [
        {"op": "test", "path": "/a~1b", "value": 1},
        {"op": "add", "path": "/l/-", "value": 3},
        {"op": "move", "from": "/a~1b", "path": "/c"},
        {"op": "remove", "path": "/l/0"},
    ]
    assert json_patch({"a/b": 1, "l": [1, 2]}, operations) == {"l": [2, 3], "c": 1}


@pytest.mark.parametrize(
    "operation",
    [{"op": "test", "path": "/a", "value": 2}, {"op": "remove", "path": "/x"}, {"op": "replace", "path": "/x"}, {}],
)
def test_a_json_patch_that_does_not_apply_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(ApiRefusal) as refused:
        json_patch({"a": 1}, [operation])
    assert refused.value.code == 422
