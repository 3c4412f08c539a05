"""Workloads as the API server takes, completes and refuses them."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.apiserver.errors import ApiRefusal
from tests.simulation.controlled import World, cron_job, deployment, job, owner


def changed(item: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return item | {"spec": item["spec"] | spec}


ZERO = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}
SURGE = {"rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}
WRONG = (
    (job(completionMode="Indexed", parallelism=2), "spec.completions: Required value: when completion mode is Indexed"),
    (job(completions=-1), "spec.completions: Invalid value: -1: must be greater than or equal to 0"),
    (job(backoffLimit=-1), "spec.backoffLimit: Invalid value"),
    (job(completionMode="Sorted"), 'spec.completionMode: Unsupported value: "Sorted"'),
    (job(manualSelector=True, selector={"matchLabels": {"a": "b"}}), "does not match"),
    (job() | {"metadata": {"name": "n" * 64}}, "must be no more than 63 characters"),
    (cron_job() | {"metadata": {"name": "n" * 53}}, "must be no more than 52 characters"),
    (cron_job(failedJobsHistoryLimit=-1), "failedJobsHistoryLimit: Invalid value"),
    (cron_job(jobTemplate={"spec": changed(job(), backoffLimit=-1)["spec"]}), "jobTemplate.spec.backoffLimit"),
    (deployment(-1), "spec.replicas: Invalid value: -1"),
    (deployment(1, strategy={"rollingUpdate": {"maxSurge": "many"}}), "a valid percent string"),
    (deployment(1, strategy=ZERO), "may not be 0 when `maxSurge` is 0"),
    (deployment(1, strategy={"rollingUpdate": {"maxUnavailable": "101%"}}), "must not be greater than 100%"),
    (changed(deployment(1), minReadySeconds=600), "must be greater than minReadySeconds"),
    (owner("DaemonSet", "a", updateStrategy={"rollingUpdate": {"maxSurge": 1}}), "when maxUnavailable is non-zero"),
    (owner("StatefulSet", "d.b"), "must not contain dots"),
    (owner("StatefulSet", "db", ordinals={"start": -1}), "spec.ordinals.start: Invalid value"),
    (
        owner("StatefulSet", "db", updateStrategy={"type": "OnDelete", "rollingUpdate": {"partition": 1}}),
        "only allowed for updateStrategy 'RollingUpdate'",
    ),
    (job(managedBy=""), "spec.managedBy: Required value"),
    (job(managedBy="queue"), "must be a domain-prefixed path"),
    (job(completions=1, parallelism=100_001, completionMode="Indexed"), "when completion mode is Indexed"),
    (cron_job(schedule=""), "spec.schedule: Required value"),
    (deployment(1, strategy={"type": "BlueGreen"}), 'Unsupported value: "BlueGreen"'),
    (deployment(1, strategy={"type": "Recreate"} | ZERO), "may not be specified when strategy `type` is 'Recreate'"),
    (changed(deployment(1), replicas="3"), "Expected `int | null`, got `str`"),
    (changed(deployment(1), replicas=2**31), "Expected `int`"),
    (changed(deployment(1), template=[]), "Expected `object | null`, got `array`"),
    (changed(deployment(1), selector={"matchExpressions": [{"key": "app", "operator": "In"}]}), "not a valid selector"),
    (owner("StatefulSet", "db", podManagementPolicy="Some"), 'Unsupported value: "Some"'),
    (owner("DaemonSet", "agent", updateStrategy={"type": "Recreate"}), 'Unsupported value: "Recreate"'),
)


UNKNOWN = (
    (job(podFailurePolicy={"rules": []}), "spec.podFailurePolicy: Forbidden"),
    (job(successPolicy={"rules": []}), "spec.successPolicy: Forbidden"),
    (
        changed(deployment(1), minReadySeconds=5),
        "spec.minReadySeconds: Forbidden: the simulated controllers do not know it",
    ),
    (owner("DaemonSet", "agent", updateStrategy=SURGE), "spec.updateStrategy.rollingUpdate.maxSurge: Forbidden"),
    (
        owner("StatefulSet", "db", persistentVolumeClaimRetentionPolicy={"whenScaled": "Delete"}),
        "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Forbidden",
    ),
)
"""What only the embedded API server refuses."""


@pytest.mark.parametrize(("item", "problem"), [*WRONG, *UNKNOWN], ids=[problem for _, problem in [*WRONG, *UNKNOWN]])
def test_a_workload_that_no_controller_could_run_is_refused(item: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiRefusal) as refusal:
        World().server.create(item)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("plural", "item", "change", "problem"),
    [
        ("deployments", deployment(1), {"selector": {"matchLabels": {"tier": "x"}}}, "field is immutable"),
        ("jobs", job(), {"template": {"spec": {"nodeSelector": {"a": "b"}}}}, "field is immutable"),
        ("jobs", job(completions=2), {"completions": 3}, "field is immutable"),
        ("statefulsets", owner("StatefulSet", "db"), {"serviceName": "other"}, "fields other than 'replicas'"),
    ],
)
def test_fixed_fields_of_a_workload_stay(plural: str, item: dict[str, Any], change: object, problem: str) -> None:
    server = World().server
    made = server.create(item)
    with pytest.raises(ApiRefusal, match=problem):
        server.patch(plural, made["metadata"]["name"], {"spec": change}, namespace="default")


def test_an_indexed_job_may_grow_with_its_parallelism() -> None:
    server = World().server
    server.create(job(completionMode="Indexed", completions=2, parallelism=2))
    server.patch("jobs", "batch", {"spec": {"completions": 3, "parallelism": 3}}, namespace="default")


def test_a_strategy_without_a_type_is_a_rolling_one() -> None:
    server = World().server
    made = server.create(owner("StatefulSet", "db", updateStrategy={"rollingUpdate": {"partition": 2}}))
    assert made["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    made = server.create(owner("DaemonSet", "agent", updateStrategy={"rollingUpdate": {"maxUnavailable": 2}}))
    assert made["spec"]["updateStrategy"]["type"] == "RollingUpdate"


def test_a_template_is_the_same_with_and_without_its_defaults() -> None:
    """So kubectl rollout undo finds the ReplicaSet of the template that it writes back."""
    server = World().server
    made = server.create(deployment(1))["spec"]["template"]
    again = deployment(1)
    again["metadata"]["name"] = "again"
    again["spec"]["template"] = made | {"metadata": made["metadata"] | {"creationTimestamp": None, "annotations": {}}}
    assert server.create(again)["spec"]["template"] == made


def test_a_claim_is_bound_at_once() -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = World().server.create({"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec})
    assert made["status"] == {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    assert made["spec"]["volumeName"] == f"pvc-{made['metadata']['uid']}"


def test_the_namespaces_of_the_system_stay() -> None:
    with pytest.raises(ApiRefusal, match="this namespace may not be deleted"):
        World().server.delete("namespaces", "default")


NUMBERS = st.integers(-1, 3)
SHARES = st.integers(-1, 3) | st.sampled_from(["0%", "25%", "100%", "x"])
TYPES = st.none() | st.sampled_from(["RollingUpdate", "Recreate", "OnDelete"])
ROLLING = st.none() | st.fixed_dictionaries({}, optional={"maxSurge": SHARES, "maxUnavailable": SHARES})
STRATEGIES = st.none() | st.fixed_dictionaries({}, optional={"type": TYPES, "rollingUpdate": ROLLING})
SPECS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("replicas", "parallelism", "completions", "backoffLimit"), NUMBERS)
    | dict.fromkeys(("activeDeadlineSeconds", "ttlSecondsAfterFinished", "revisionHistoryLimit"), NUMBERS)
    | dict.fromkeys(("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"), NUMBERS)
    | {"strategy": STRATEGIES, "updateStrategy": STRATEGIES, "ordinals": st.none() | st.just({"start": 3})}
    | {name: st.booleans() | st.none() for name in ("suspend", "paused")}
    | {"completionMode": st.sampled_from(["Indexed", "NonIndexed", None])}
    | {"podManagementPolicy": st.sampled_from(["OrderedReady", "Parallel"])}
    | {"schedule": st.sampled_from(["* * * * *", "@every 3s", "0 0 31 2 *"])},
)
KINDS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob")


@settings(deadline=None)
@given(st.sampled_from(KINDS), SPECS, SPECS)
def test_controllers_take_each_workload_that_the_api_server_takes(
    kind: str, spec: dict[str, Any], change: dict[str, Any]
) -> None:
    item = {"Job": job, "CronJob": cron_job}.get(kind, lambda: owner(kind, "web"))()
    world = World()
    try:
        made = world.server.create(changed(item, **spec))
    except ApiRefusal:
        return
    world.turn(2)
    world.run_all()
    with suppress(ApiRefusal):
        world.change(f"{kind.lower()}s", made["metadata"]["name"], change)
    world.turn(3)


@pytest.mark.parametrize(
    "item",
    [
        owner("ReplicaSet", "web", replicas=2**31 - 1),
        owner("StatefulSet", "web", replicas=2**31 - 1, podManagementPolicy="Parallel"),
        job(parallelism=2**31 - 1),
        job(parallelism=100_000, completions=2**31 - 1, completionMode="Indexed"),
    ],
)
def test_an_owner_of_very_many_pods_gets_them_step_by_step(item: dict[str, Any]) -> None:
    world = World()
    world.server.create(item)
    world.turn(1)
    assert len(world.pods()) == 500
