"""Workloads on the embedded API server, by turns of the stand-in controllers."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from simulation.apiserver.errors import ApiRefusal
from simulation.controllers.schedule import BadSchedule, read_schedule
from tests.simulation.controlled import (
    BEGIN,
    CONTAINER,
    RUNNING,
    World,
    cron_job,
    deployment,
    job,
    node,
    owner,
    with_image,
)


@pytest.fixture
def world() -> World:
    return World()


def test_a_deployment_has_its_pods_and_says_so(world: World) -> None:
    world.server.create(deployment(2))
    world.turn()
    assert len(world.pods()) == 2
    world.run_all()
    world.turn()
    status = world.status("deployments", "web")
    assert (status["readyReplicas"], status["updatedReplicas"], status["observedGeneration"]) == (2, 2, 1)
    assert "unavailableReplicas" not in status


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_ended_is_replaced_and_stays_listed(world: World, phase: str) -> None:
    world.server.create(deployment(1))
    world.turn()
    [first] = world.pods()
    world.become({"phase": phase}, first)
    world.turn(5)
    assert (first in world.pods(), len(world.pods())) == (True, 2)


def test_pods_that_fail_again_and_again_are_made_ever_more_slowly(world: World) -> None:
    world.server.create(deployment(1))
    for _ in range(60):
        world.turn(1)
        world.become({"phase": "Failed"}, *world.pods("Pending"))
    assert len(world.pods()) == 5


def test_a_rollout_keeps_within_its_limits(world: World) -> None:
    world.server.create(deployment(4))
    world.turn()
    world.run_all()
    world.turn()
    world.change("deployments", "web", deployment(4, "i:2")["spec"])
    images = set[str]()
    for _ in range(20):
        world.turn(1)
        living = [pod for pod in world.all("pods") if not pod["metadata"].get("deletionTimestamp")]
        ready = [pod for pod in living if pod["status"]["phase"] == "Running"]
        assert (len(living) <= 5, len(ready) >= 3) == (True, True)
        images = {pod["spec"]["containers"][0]["image"] for pod in living}
        world.run_all()
    assert images == {"i:2"}
    assert [one["spec"]["replicas"] for one in world.all("replicasets")] in ([0, 4], [4, 0])


def test_recreate_ends_the_old_pods_first(world: World) -> None:
    world.server.create(deployment(2, strategy={"type": "Recreate"}))
    world.turn()
    world.run_all()
    world.change("deployments", "web", deployment(2, "i:2", {"type": "Recreate"})["spec"])
    world.turn(4)
    assert {pod["spec"]["containers"][0]["image"] for pod in world.all("pods")} == {"i:2"}


def test_a_deployment_that_goes_takes_its_pods(world: World) -> None:
    world.server.create(deployment(2))
    world.turn()
    world.server.delete("deployments", "web", namespace="default")
    world.turn()
    assert (world.pods(), world.all("replicasets")) == ([], [])


def test_old_replica_sets_stay_up_to_the_limit_of_the_history(world: World) -> None:
    made = deployment(1)
    made["spec"]["revisionHistoryLimit"] = 1
    world.server.create(made)
    for image in ("i:2", "i:3", "i:4"):
        world.turn()
        world.run_all()
        world.change("deployments", "web", with_image(made, image))
    for _ in range(5):
        world.turn()
        world.run_all()
    images = [one["spec"]["template"]["spec"]["containers"][0]["image"] for one in world.all("replicasets")]
    assert sorted(images) == ["i:3", "i:4"]


def test_a_rollout_without_progress_misses_its_deadline_until_it_goes_on(world: World) -> None:
    made = deployment(1)
    made["spec"]["progressDeadlineSeconds"] = 5

    def progressing() -> tuple[str, str]:
        found = {one["type"]: one for one in world.status("deployments", "web")["conditions"]}["Progressing"]
        return found["status"], found["reason"]

    world.server.create(made)
    world.turn(5)
    assert progressing() == ("True", "ReplicaSetUpdated")
    world.turn(5)
    assert progressing() == ("False", "ProgressDeadlineExceeded")
    world.run_all()
    world.turn()
    assert progressing() == ("True", "NewReplicaSetAvailable")
    world.turn(10)
    assert progressing() == ("True", "NewReplicaSetAvailable")


def test_fewer_replicas_end_pods_that_do_not_run_first(world: World) -> None:
    world.server.create(deployment(3))
    world.turn()
    kept = world.pods()[1]
    world.become(RUNNING, kept)
    world.change("deployments", "web", {"replicas": 1})
    world.turn()
    assert world.pods() == [kept]


def test_a_job_runs_its_completions_by_its_parallelism(world: World) -> None:
    world.server.create(job(completions=3, parallelism=2))
    world.turn()
    assert len(world.pods()) == 2
    for _ in range(2):
        world.become({"phase": "Succeeded"}, *world.pods("Pending"))
        world.turn()
    status = world.status("jobs", "batch")
    assert (len(world.pods()), status["succeeded"], status["conditions"][0]["type"]) == (3, 3, "Complete")


def test_an_indexed_job_runs_each_index_once(world: World) -> None:
    world.server.create(job(completions=2, parallelism=2, completionMode="Indexed"))
    world.turn()
    assert [name.rpartition("-")[0] for name in world.pods()] == ["batch-0", "batch-1"]
    world.become({"phase": "Failed"}, world.pods()[0])
    world.turn(4)
    assert [name.rpartition("-")[0] for name in world.pods("Pending")] == ["batch-0", "batch-1"]
    world.become({"phase": "Succeeded"}, *world.pods("Pending"))
    world.turn()
    assert world.status("jobs", "batch")["completedIndexes"] == "0,1"


def test_a_job_of_less_parallelism_ends_pods_that_do_not_run_first(world: World) -> None:
    world.server.create(job(completions=9, parallelism=3))
    world.turn()
    world.become(RUNNING, running := world.pods()[2])
    world.change("jobs", "batch", {"parallelism": 1})
    world.turn()
    assert world.pods() == [running]


def test_a_pod_of_a_job_that_somebody_deletes_has_failed(world: World) -> None:
    world.server.create(job(completions=2, parallelism=2))
    world.turn()
    world.server.delete("pods", world.pods()[0], namespace="default")
    world.turn(1)
    assert (world.status("jobs", "batch")["failed"], world.status("jobs", "batch")["active"]) == (1, 1)


def test_a_job_that_misses_its_deadline_counts_the_pods_that_it_ends(world: World) -> None:
    world.server.create(job(activeDeadlineSeconds=3))
    world.turn(9)
    assert (world.pods(), world.status("jobs", "batch")["failed"]) == ([], 1)


def test_a_job_says_whether_it_is_suspended(world: World) -> None:
    def suspended() -> tuple[str, str, int]:
        (condition,) = world.status("jobs", "batch")["conditions"]
        return condition["status"], condition["reason"], world.status("jobs", "batch").get("failed", 0)

    world.server.create(job())
    world.turn()
    world.change("jobs", "batch", {"suspend": True})
    world.turn()
    assert suspended() == ("True", "JobSuspended", 0)
    world.change("jobs", "batch", {"suspend": False})
    world.turn()
    assert suspended() == ("False", "JobResumed", 0)


def test_an_indexed_job_that_becomes_smaller_forgets_the_indexes_beyond(world: World) -> None:
    world.server.create(job(completions=4, parallelism=4, completionMode="Indexed"))
    world.turn()
    world.become({"phase": "Succeeded"}, *(name for name in world.pods() if name.split("-")[1] in "03"))
    world.turn()
    world.change("jobs", "batch", {"completions": 2, "parallelism": 2})
    world.turn()
    status = world.status("jobs", "batch")
    assert (status["active"], status["completedIndexes"], status.get("failed")) == (1, "0", None)


def test_a_job_of_another_controller_is_left_alone(world: World) -> None:
    world.server.create(job(managedBy="example.com/queue"))
    world.turn()
    assert (world.pods(), world.status("jobs", "batch")) == ([], {})


def test_indexes_that_are_complete_are_listed_as_ranges(world: World) -> None:
    world.server.create(job(completions=8, parallelism=8, completionMode="Indexed"))
    world.turn()
    done = [name for name in world.pods() if name.split("-")[1] not in "36"]
    world.become({"phase": "Succeeded"}, *done)
    world.turn()
    assert world.status("jobs", "batch")["completedIndexes"] == "0-2,4,5,7"


def test_a_pod_of_a_job_counts_also_after_it_was_deleted(world: World) -> None:
    world.server.create(job(completions=2))
    world.turn()
    world.become({"phase": "Succeeded"}, *world.pods())
    world.turn(1)
    world.server.delete("pods", world.pods("Succeeded")[0], namespace="default")
    world.turn()
    assert world.status("jobs", "batch")["succeeded"] == 1


def test_a_job_fails_after_its_limit_of_failures(world: World) -> None:
    world.server.create(job(backoffLimit=1))
    for _ in range(8):
        world.turn(1)
        world.become({"phase": "Failed"}, *world.pods("Pending"))
    [condition] = world.status("jobs", "batch")["conditions"]
    assert (len(world.pods()), condition["type"], condition["reason"]) == (2, "Failed", "BackoffLimitExceeded")


@pytest.mark.parametrize(
    ("spec", "left"), [({"activeDeadlineSeconds": 2}, []), ({"suspend": True}, []), ({}, ["batch"])]
)
def test_a_job_that_may_not_run_has_no_pods(world: World, spec: dict[str, Any], left: list[str]) -> None:
    world.server.create(job(**spec))
    world.turn(5)
    assert [name.rpartition("-")[0] for name in world.pods()] == left


def test_a_job_that_is_over_goes_after_its_time(world: World) -> None:
    world.server.create(job(ttlSecondsAfterFinished=3))
    world.turn()
    world.become({"phase": "Succeeded"}, *world.pods())
    world.turn(2)
    assert len(world.all("jobs")) == 1
    world.turn(4)
    assert (world.all("jobs"), world.pods()) == ([], [])


def test_pods_of_a_stateful_set_come_in_order_and_come_back_under_their_names(world: World) -> None:
    world.server.create(owner("StatefulSet", "db", replicas=3, serviceName="db"))
    world.turn()
    assert world.pods() == ["db-0"]
    for _ in range(3):
        world.run_all()
        world.turn(1)
    assert world.pods() == ["db-0", "db-1", "db-2"]
    first = world.all("pods")[0]
    assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("db-0", "db")
    world.run_all()
    world.server.delete("pods", "db-1", namespace="default")
    world.turn(1)
    assert sorted(world.pods("Pending")) == ["db-1"]
    world.run_all()
    world.change("statefulsets", "db", {"replicas": 1})
    world.turn(4)
    assert world.pods() == ["db-0"]
    world.turn()
    assert world.status("statefulsets", "db")["readyReplicas"] == 1


@pytest.mark.parametrize(("policy", "left"), [("Retain", ["data-db-0", "data-db-1"]), ("Delete", [])])
def test_pods_of_a_stateful_set_keep_their_claims(world: World, policy: str, left: list[str]) -> None:
    made = owner("StatefulSet", "db", replicas=2, podManagementPolicy="Parallel")
    made["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    made["spec"]["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": policy}
    world.server.create(made)
    world.turn()
    volumes = {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}}
    assert (world.pods(), world.all("pods")[1]["spec"]["volumes"]) == (["db-0", "db-1"], [volumes])
    world.server.delete("pods", "db-1", namespace="default")
    world.turn()
    assert [one["metadata"]["name"] for one in world.all("persistentvolumeclaims")] == ["data-db-0", "data-db-1"]
    world.server.delete("statefulsets", "db", namespace="default")
    world.turn()
    assert [one["metadata"]["name"] for one in world.all("persistentvolumeclaims")] == left


def test_a_stateful_set_replaces_the_last_pod_first_down_to_its_partition(world: World) -> None:
    made = owner("StatefulSet", "db", replicas=3, podManagementPolicy="Parallel")
    made["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    world.server.create(made)
    world.turn(1)
    assert len(world.pods()) == 3
    world.run_all()
    world.change("statefulsets", "db", with_image(made, "i:2"))
    order = []
    for _ in range(8):
        world.turn(1)
        order += [name for name in world.pods("Pending") if name not in order]
        world.run_all()
    images = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in world.all("pods")}
    assert (order, images) == (["db-2", "db-1"], {"db-0": "i:1", "db-1": "i:2", "db-2": "i:2"})
    status = world.status("statefulsets", "db")
    assert (status["updatedReplicas"], status["currentReplicas"]) == (2, 1)


def test_a_daemon_set_has_a_pod_on_each_node_that_it_allows(world: World) -> None:
    taint = {"key": "reserved", "effect": "NoSchedule"}
    for one in (node("a"), node("b", unschedulable=True), node("c"), node("d", taints=[taint])):
        world.server.create(one)
    made = owner("DaemonSet", "agent")
    made["spec"]["template"]["spec"] = {"containers": [CONTAINER], "nodeSelector": {"gpu": "True"}}
    world.server.create(made)
    world.turn()
    assert nodes_of(world) == ["a", "b"]
    world.run_all()
    first = next(pod["metadata"]["name"] for pod in world.all("pods") if node_of(pod) == "a")
    world.become({"phase": "Failed"}, first)
    world.server.patch("nodes", "b", {"metadata": {"labels": {"gpu": "False"}}})
    world.server.patch("nodes", "a", {"spec": {"taints": [taint]}})
    world.server.create(node("e"))
    world.turn()
    assert nodes_of(world) == ["e"]
    status = world.status("daemonsets", "agent")
    assert (status["desiredNumberScheduled"], status["numberReady"]) == (1, 0)


def nodes_of(world: World) -> list[str]:
    """The nodes for which living pods were made."""
    return sorted(node_of(pod) for pod in world.all("pods") if not pod["metadata"].get("deletionTimestamp"))


def node_of(pod: dict[str, Any]) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def test_a_daemon_set_is_replaced_one_node_after_the_other(world: World) -> None:
    for name in ("a", "b", "e"):
        world.server.create(node(name))
    made = owner("DaemonSet", "agent")
    world.server.create(made)
    world.turn()
    world.run_all()
    world.change("daemonsets", "agent", with_image(made, "i:2"))
    for _ in range(8):
        world.turn(1)
        ready = [pod for pod in world.all("pods") if pod["status"]["phase"] == "Running"]
        assert len(ready) >= 2
        world.run_all()
    assert {pod["spec"]["containers"][0]["image"] for pod in world.all("pods")} == {"i:2"}
    assert world.status("daemonsets", "agent")["updatedNumberScheduled"] == 3


@pytest.mark.parametrize(("policy", "running"), [("Allow", 3), ("Forbid", 1), ("Replace", 1)])
def test_a_cron_job_makes_a_job_at_each_time_of_its_schedule(world: World, policy: str, running: int) -> None:
    world.server.create(cron_job(concurrencyPolicy=policy))
    world.turn(1)
    assert world.all("jobs") == []
    for _ in range(3):
        world.now += timedelta(minutes=2)
        world.turn(2)
    assert len(world.all("jobs")) == running
    assert len(world.status("cronjobs", "report")["active"]) == running
    world.server.delete("cronjobs", "report", namespace="default")
    world.turn()
    assert (world.all("jobs"), world.pods()) == ([], [])


def test_of_the_jobs_of_a_cron_job_that_are_over_the_last_ones_stay(world: World) -> None:
    world.server.create(cron_job(successfulJobsHistoryLimit=2))
    for _ in range(4):
        world.now += timedelta(minutes=2)
        world.turn(2)
        world.become({"phase": "Succeeded"}, *world.pods("Pending"))
        world.turn()
    assert len(world.all("jobs")) == 2
    assert world.status("cronjobs", "report")["lastSuccessfulTime"] > "2030-01-01T00:08"
    world.change("cronjobs", "report", {"suspend": True})
    world.now += timedelta(minutes=9)
    world.turn()
    assert len(world.all("jobs")) == 2


@pytest.mark.parametrize(
    ("schedule", "latest"),
    [
        ("0 3 * * *", "2030-01-01T03:00"),
        ("@hourly", "2030-01-02T01:00"),
        ("*/15 9-17 * * mon-fri", "2030-01-01T17:45"),
        ("30 1,13 1 jan *", "2030-01-01T13:30"),
        ("0 0 13 * 2", "2030-01-01T00:00"),
        ("0 0 * * sun", None),
        ("10/20 0 * * *", "2030-01-02T00:50"),
        ("@every 7h30m", "2030-01-01T22:29"),
        ("@every 1.5h500ms", "2030-01-01T23:59"),
    ],
)
def test_a_schedule_names_its_times(schedule: str, latest: str | None) -> None:
    found = read_schedule(schedule).latest(BEGIN - timedelta(minutes=1), BEGIN + timedelta(hours=25))
    assert found == (None if latest is None else datetime.fromisoformat(f"{latest}+00:00"))


@pytest.mark.parametrize(
    ("schedule", "begin", "times"),
    [
        # Clocks go back at 01:00 UTC on 27 October: 02:30 comes twice.
        ("30 2 * * *", "2030-10-26T12:00+00:00", ["2030-10-27T00:30", "2030-10-27T01:30"]),
        ("0 * * * *", "2030-10-26T22:30+00:00", ["2030-10-26T23:00", "2030-10-27T00:00", "2030-10-27T01:00"]),
        # Clocks go forward at 01:00 UTC on 31 March: 02:30 does not come.
        ("30 2 * * *", "2030-03-30T12:00+00:00", ["2030-04-01T00:30"]),
    ],
)
def test_a_schedule_of_a_time_zone_follows_its_clock(schedule: str, begin: str, times: list[str]) -> None:
    at, found = datetime.fromisoformat(begin), []
    for minute in range(48 * 60):
        until = at + timedelta(minutes=minute + 1)
        due = read_schedule(schedule).latest(until - timedelta(minutes=1), until, ZoneInfo("Europe/Berlin"))
        found += [due.astimezone(UTC).strftime("%Y-%m-%dT%H:%M")] if due else []
    assert found[: len(times)] == times


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* * 0 * *",
        "*/0 * * * *",
        "5-3 * * * *",
        "a * * * *",
        "0 0 * * 7",
        "0 0 * january *",
        "@Daily",
        "@every x",
        "TZ=UTC * * * * *",
    ],
)
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(BadSchedule):
        read_schedule(schedule)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (cron_job(schedule="sometimes"), "spec.schedule: Invalid value"),
        (cron_job(timeZone="Mars/Olympus"), "unknown time zone"),
        (
            cron_job(jobTemplate={"spec": {"template": {"spec": {"containers": [CONTAINER]}}}}),
            "jobTemplate.spec.template",
        ),
        (
            deployment(1) | {"spec": deployment(1)["spec"] | {"selector": {"matchLabels": {"app": "x"}}}},
            "does not match",
        ),
        (job(template={"spec": {"containers": [CONTAINER]}}), 'Unsupported value: "Always"'),
        (job(template={"spec": {"restartPolicy": "Never"}}), "containers: Required value"),
    ],
)
def test_owners_that_could_not_own_are_refused(world: World, item: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiRefusal, match=problem):
        world.server.create(item)
