"""Which pods have which GPUs, and what speaks against which GPU."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from deviceplugin.inventory import Inventory
from deviceplugin.machine.readings import MissingGpu
from deviceplugin.remediation.holders import holder_of, seen, unshown, why_spared
from deviceplugin.remediation.step import Holder, Seen, Sign
from proto.annotations.keys import RESOURCE_COUNT
from proto.devices import DeviceUUID
from proto.kubernetes.objects import (
    STATIC_UID,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    Resources,
)
from tests.deviceplugin.gpus import PAIR, A, B, bound_pod, share

MISSING = MissingGpu(name="GPU 2 at 0000:41:00.0", problem="GPU is lost", index=2)
REFUSED = ContainerState(waiting={"reason": "CreateContainerConfigError"})
RUNNING = ContainerState(running={})


def holding(*states: ContainerState, gpus: tuple[DeviceUUID, ...] = (A,), init: int = 0, **changed: Any) -> Pod:
    """Each container has one GPU; the states are of those that kubelet speaks of."""
    made = bound_pod("p", tuple((share(gpu),) for gpu in gpus), init=init, phase=changed.pop("phase", "Running"))
    containers = made.all_containers
    for container in containers:
        container.resources = Resources(limits={RESOURCE_COUNT: "1"})
    statuses = [ContainerStatus(name=f"c{number}", state=state) for number, state in enumerate(states)]
    made.status.init_container_statuses, made.status.container_statuses = statuses[:init], statuses[init:]
    for name, value in changed.items():
        setattr(made.spec, name, value)
    return made


def held(found: Pod) -> frozenset[str]:
    holder = holder_of(found, {}, RESOURCE_COUNT)
    return frozenset() if holder is None else holder.gpus


def waits(found: Pod) -> bool:
    holder = holder_of(found, {}, RESOURCE_COUNT)
    return holder is not None and holder.waits


def shown(inventory: Inventory, *pods: Pod) -> Seen:
    """On a node that has had all GPUs that its pods name."""
    found = holders(inventory, *pods)
    return seen(inventory, found, unshown(inventory, found))


def holders(inventory: Inventory, *pods: Pod) -> list[Holder]:
    found = (holder_of(each, inventory.parents, RESOURCE_COUNT) for each in pods)
    return [each for each in found if each is not None]


def test_a_pod_has_the_gpus_of_its_containers() -> None:
    assert holder_of(holding(RUNNING, RUNNING, gpus=(A, B)), {}, RESOURCE_COUNT) == Holder(
        uid="uid-p", namespace="default", pod="p", gpus=frozenset({A, B})
    )


def test_an_instance_is_a_part_of_its_gpu() -> None:
    holder = holder_of(holding(RUNNING), {A: B}, RESOURCE_COUNT)
    assert holder is not None
    assert holder.gpus == {A, B}


def test_what_hami_says_of_a_gpu_in_mig_mode_names_the_gpu() -> None:
    inventory = Inventory(devices=PAIR, physical=frozenset({A, B}))
    decided_by_hami = holding(RUNNING, gpus=(DeviceUUID(f"{A}[1-0]"),))
    assert held(decided_by_hami) == {A}
    assert shown(inventory, decided_by_hami).ill == {}


def test_what_has_ended_has_no_gpu() -> None:
    done = ContainerState(terminated=ContainerStateTerminated(exit_code=0))
    failed = ContainerState(terminated=ContainerStateTerminated(exit_code=1))
    assert held(holding(done, RUNNING, gpus=(A, B), init=1)) == {B}
    assert held(holding(REFUSED, gpus=(A, B), init=1, phase="Pending")) == {A, B}
    assert held(holding(done, RUNNING, gpus=(A, B), restart_policy="Never")) == {B}
    assert held(holding(failed, RUNNING, gpus=(A, B), restart_policy="Never")) == {B}
    assert held(holding(done, RUNNING, gpus=(A, B), restart_policy="OnFailure")) == {B}
    assert held(holding(failed, RUNNING, gpus=(A, B), restart_policy="OnFailure")) == {A, B}
    assert held(holding(done, gpus=(A,), restart_policy="Always")) == {A}
    assert held(holding(done, gpus=(A,), phase="Succeeded")) == frozenset()


def test_a_pod_waits_when_a_container_with_a_gpu_cannot_start_and_none_runs() -> None:
    assert waits(holding(REFUSED))
    assert waits(holding(ContainerState(waiting={"reason": "CrashLoopBackOff"})))
    assert not waits(holding(ContainerState(waiting={"reason": "ContainerCreating"})))
    assert not waits(holding(RUNNING))
    assert not waits(holding(REFUSED, RUNNING, gpus=(A, B)))
    assert not waits(holding())


def test_a_pod_without_a_decision_that_can_be_read_does_not_count() -> None:
    unreadable = holding(RUNNING)
    unreadable.metadata.annotations = dict.fromkeys(unreadable.metadata.annotations, "?")
    undecided = holding(RUNNING)
    undecided.metadata.annotations = {}
    assert (holder_of(unreadable, {}, RESOURCE_COUNT), holder_of(undecided, {}, RESOURCE_COUNT)) == (None, None)


def test_a_pod_that_is_being_deleted_leaves_at_the_end_of_its_grace_period() -> None:
    leaving = holding(RUNNING)
    leaving.metadata.deletion_timestamp = "2030-01-01T00:00:30Z"
    holder = holder_of(leaving, {}, RESOURCE_COUNT)
    assert holder is not None
    assert holder.leaves_at == datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC)


def test_every_gpu_that_should_be_here_counts() -> None:
    inventory = Inventory(devices=PAIR, problems={B: "GPU is lost"}, physical=frozenset({A, B}), missing=(MISSING,))
    lost = DeviceUUID("GPU-cccccccc-0000-0000-0000-000000000000")
    on_lost = holding(RUNNING, gpus=(lost,))
    of_b: dict[str, Sign] = {B: Sign(name=f"GPU 1 ({B})", problem="GPU is lost")}
    one = (Holder(uid="uid-p", namespace="default", pod="p", gpus=frozenset({lost})),)
    both: dict[str, Sign] = {lost: Sign(name=f"{MISSING.name} ({lost})", problem="GPU is lost", missing=True)}
    assert shown(inventory, on_lost) == Seen(ill=of_b | both, well=1, holders=one)
    by_place = {MISSING.name: Sign(name=MISSING.name, problem="GPU is lost", missing=True)}
    assert shown(inventory) == Seen(ill=of_b | by_place, well=1)
    by_uuid: dict[str, Sign] = {lost: Sign(name=f"GPU {lost}", problem="the driver does not show it")}
    found = shown(replace(inventory, missing=()), on_lost)
    assert found == Seen(ill=of_b | by_uuid, well=1, holders=one)
    found = shown(replace(inventory, missing=(MISSING, replace(MISSING, name="GPU 3"))), on_lost)
    assert found.ill.keys() == {B, lost, MISSING.name, "GPU 3"}


def test_a_gpu_that_the_node_never_had_is_not_ill_whatever_a_pod_says() -> None:
    inventory = Inventory(devices=PAIR, physical=frozenset({A, B}))
    found = holders(inventory, holding(RUNNING, gpus=(A, DeviceUUID("GPU-forged"))))
    assert unshown(inventory, found) == {"GPU-forged"}
    assert seen(inventory, found) == Seen(ill={}, well=2, holders=tuple(found))


def test_without_a_driver_all_gpus_that_pods_have_are_ill() -> None:
    found = shown(Inventory(), holding(RUNNING))
    assert (set(found.ill), found.well) == ({A}, 0)


FIRST, SECOND = DeviceUUID("MIG-first"), DeviceUUID("MIG-second")
INSTANCES = Inventory(
    devices=(replace(PAIR[0], uuid=FIRST), PAIR[1]),
    instances={"nvidia.com/mig-1g.5gb": (replace(PAIR[0], uuid=SECOND),)},
    physical=frozenset({A, B}),
    parents={FIRST: A, SECOND: A},
)


def test_a_gpu_is_ill_when_all_of_its_instances_are() -> None:
    found = shown(replace(INSTANCES, problems={FIRST: "GPU is lost", SECOND: "GPU is lost"}), holding(gpus=(FIRST,)))
    assert (set(found.ill), found.well) == ({A}, 1)
    assert found.holders[0].gpus & found.ill.keys()


def test_an_instance_that_is_gone_is_ill_for_the_pod_that_has_it_alone() -> None:
    changed = replace(INSTANCES, problems={FIRST: "the driver no longer shows it"})
    assert shown(changed, holding(gpus=(SECOND,))).ill == {}
    found = shown(changed, holding(gpus=(FIRST,)))
    assert found.ill == {FIRST: Sign(name=f"GPU 0 ({FIRST})", problem="the driver no longer shows it")}
    assert found.well == 2


@pytest.mark.parametrize(
    ("changed", "controller", "why"),
    [
        ({}, "ReplicaSet", ""),
        ({}, "Job", ""),
        ({}, "", "it has no controller that would make it again"),
        ({}, "DaemonSet", "its DaemonSet would make it again on this node"),
        ({}, "Node", "it is a static pod, which only its node can end"),
        ({"priority": 2_000_001_000}, "ReplicaSet", "it is one of the cluster's own pods"),
    ],
)
def test_who_is_never_evicted(changed: dict[str, Any], controller: str, why: str) -> None:
    assert why_spared(holding(**changed), controller) == why


def test_static_pods_and_pods_of_the_system_are_never_evicted() -> None:
    mirror, system = holding(), holding()
    mirror.metadata.annotations[STATIC_UID] = "x"
    system.metadata.namespace = "kube-system"
    assert why_spared(mirror, "ReplicaSet") == "it is a static pod, which only its node can end"
    assert why_spared(system, "ReplicaSet") == "it is one of the cluster's own pods"
