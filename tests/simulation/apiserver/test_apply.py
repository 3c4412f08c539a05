"""Server-side apply: what a manager leaves out goes, what others wrote stays."""

from typing import Any

from simulation.apiserver.apply import applied


def pod(labels: dict[str, str], *containers: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p", "labels": labels}, "spec": {"containers": list(containers)}}


def plain(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"metadata": {key: value for key, value in item["metadata"].items() if key != "managedFields"}}


def test_what_was_applied_and_is_left_out_goes() -> None:
    first = applied(None, pod({"a": "1", "b": "2"}, {"name": "x", "image": "i:1"}, {"name": "y", "image": "i:1"}), "me")
    then = pod({"a": "3"}, {"name": "x", "image": "i:2"})
    assert plain(applied(first, then, "me")) == then


def test_ports_of_a_service_merge_by_their_own_key() -> None:
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    assert plain(applied(applied(None, service, "me"), service, "me")) == service
    without = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 443}]}}
    assert plain(applied(applied(None, service, "me"), without, "me")) == without


def test_fields_of_others_stay() -> None:
    first = applied(None, pod({"a": "1"}, {"name": "x", "image": "i:1"}), "me")
    first["metadata"]["labels"]["theirs"] = "t"
    first["spec"]["nodeName"] = "n"
    second = applied(first, pod({}, {"name": "x", "image": "i:1"}), "me")
    assert second["metadata"]["labels"] == {"theirs": "t"}
    assert second["spec"]["nodeName"] == "n"


def test_managers_are_kept_apart() -> None:
    first = applied(None, pod({"a": "1"}), "me")
    second = applied(first, pod({"b": "2"}), "you")
    assert [entry["manager"] for entry in second["metadata"]["managedFields"]] == ["me", "you"]
    assert plain(applied(second, pod({}), "me"))["metadata"]["labels"] == {"b": "2"}
