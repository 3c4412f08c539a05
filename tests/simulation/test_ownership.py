"""What owners adopt and release, and what becomes of their pods when they are deleted."""

from typing import Any

import pytest

from tests.simulation.controlled import CONTAINER, World, deployment, job, owner


@pytest.fixture
def web() -> World:
    """Returns a Deployment with two pods that run."""
    world = World()
    world.server.create(deployment(2))
    world.turn()
    world.run_all()
    world.turn()
    return world


def deleted(world: World, plural: str, name: str, policy: str) -> None:
    world.server.delete(plural, name, namespace="default", options={"propagationPolicy": policy})


def controllers(world: World, plural: str) -> set[str]:
    references = [one["metadata"].get("ownerReferences") or [{"name": ""}] for one in world.all(plural)]
    return {name for several in references for name in [one["name"] for one in several]}


def test_orphans_stay_without_their_owner_and_are_adopted_by_the_next(web: World) -> None:
    before = web.pods()
    deleted(web, "deployments", "web", "Orphan")
    web.turn()
    assert (web.all("deployments"), controllers(web, "replicasets"), web.pods()) == ([], {""}, before)
    web.server.create(deployment(2))
    web.turn()
    assert (controllers(web, "replicasets"), web.pods()) == ({"web"}, before)


def test_an_owner_deleted_in_the_foreground_stays_until_its_pods_are_gone(web: World) -> None:
    pod = web.pods()[0]
    web.server.patch("pods", pod, {"metadata": {"finalizers": ["example.com/held"]}}, namespace="default")
    deleted(web, "deployments", "web", "Foreground")
    web.turn()
    assert (len(web.all("deployments")), len(web.all("replicasets")), web.pods()) == (1, 1, [pod])
    web.server.patch("pods", pod, {"metadata": {"finalizers": []}}, namespace="default")
    web.turn()
    assert (web.all("deployments"), web.all("replicasets"), web.pods()) == ([], [], [])


def test_a_deletion_in_the_background_ends_one_in_the_foreground(web: World) -> None:
    deleted(web, "deployments", "web", "Foreground")
    deleted(web, "deployments", "web", "Background")
    assert web.all("deployments") == []


def test_a_pod_is_released_when_its_labels_change_and_adopted_when_they_return(web: World) -> None:
    pod = web.pods()[0]
    web.server.patch("pods", pod, {"metadata": {"labels": {"app": "debug"}}}, namespace="default")
    web.turn()
    assert (len(web.pods()), controllers(web, "pods")) == (3, {web.all("replicasets")[0]["metadata"]["name"], ""})
    web.server.patch("pods", pod, {"metadata": {"labels": {"app": "web"}}}, namespace="default")
    web.turn()
    assert len(web.pods()) == 2


@pytest.mark.parametrize(
    ("made", "left"),
    [
        (owner("ReplicaSet", "web", replicas=1), ["loose"]),
        (owner("StatefulSet", "web", replicas=1), ["loose", "web-0"]),
        (owner("DaemonSet", "web"), ["loose"]),
        (job(manualSelector=True, selector={"matchLabels": {"app": "web"}}), None),
    ],
)
def test_a_loose_pod_with_the_labels_of_an_owner_is_adopted(made: dict[str, Any], left: list[str] | None) -> None:
    world = World()
    world.server.create(
        {
            "kind": "Pod",
            "metadata": {"name": "loose", "labels": {"app": "web"}},
            "spec": {"containers": [CONTAINER]},
        }
    )
    if left is None:
        made["spec"]["template"] = made["spec"]["template"] | {"metadata": {"labels": {"app": "web"}}}
        left = ["loose"]
    world.server.create(made)
    world.turn()
    assert world.pods() == (left if made["kind"] != "DaemonSet" else [])


def test_what_any_owner_leaves_goes_with_the_last_owner() -> None:
    world = World()
    owners = [world.server.create({"kind": "ConfigMap", "metadata": {"name": name}}) for name in ("a", "b")]
    references = [
        {"kind": "ConfigMap", "apiVersion": "v1", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}
        for one in owners
    ]
    strange = {"kind": "Widget", "apiVersion": "example.com/v1", "name": "w", "uid": "w"}
    for name, owned in (("two", references), ("strange", [strange])):
        metadata = {"name": name, "ownerReferences": owned}
        world.server.create({"kind": "ConfigMap", "metadata": metadata})
    world.server.delete("configmaps", "a", namespace="default")
    world.turn()
    assert [one["metadata"]["name"] for one in world.all("configmaps")] == ["b", "strange", "two"]
    world.server.delete("configmaps", "b", namespace="default")
    world.turn()
    assert [one["metadata"]["name"] for one in world.all("configmaps")] == ["strange"]
