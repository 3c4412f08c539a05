"""Thirty weaknesses of the node daemon of Project-HAMi/HAMi 2.10, and the tests that this one does not have them.

Paths are relative to `tests`; what is here only has its name.

 1  a pod gets the GPUs of another, because the lock's pod is taken as it is (slots ask kubelet who holds the ids; where
    that cannot be, the lock's pod is held against node, phase, number of GPUs and their capacity, and refused while
    another pod waits for as many)
    deviceplugin/allocation/test_slot_allocator.py::test_the_spec_of_whoever_is_proven_lies_there_before_the_container_is_created
    deviceplugin/allocation/test_immediate.py::test_two_candidates_without_a_lock_are_refused_by_name
    deviceplugin/allocation/test_immediate.py::test_a_proven_pod_that_must_not_be_served_is_named
    deviceplugin/test_daemon_with_kubelet.py::test_two_equal_pods_at_once_are_never_guessed
 2  without a lock the first pod of a list is taken, also one that was served already
    deviceplugin/allocation/test_immediate.py::test_a_pod_that_waits_for_nothing_here_is_no_candidate
    deviceplugin/allocation/test_immediate.py::test_the_lock_of_a_pod_that_was_served_no_longer_says_anything
 3  containers are matched by position alone
    deviceplugin/allocation/test_immediate.py::test_another_number_of_gpus_than_decided_is_refused
    deviceplugin/allocation/test_immediate.py::test_kubelets_record_says_who_was_served
 4  one failed write leaves the node locked
    test_the_lock_is_released_although_the_api_server_refuses_at_first
 5  the lock carries no UID, so that a pod made anew under the same name inherits it
    test_a_namesake_of_the_locks_pod_does_not_inherit_the_lock
    deviceplugin/allocation/test_immediate.py::test_what_is_served_is_erased_for_this_very_pod
 6  a registration that failed, or that somebody removed, is never repeated
    test_a_report_that_failed_is_repeated
    deviceplugin/test_daemon_with_kubelet.py::test_it_registers_publishes_once_and_restores_what_was_taken
 7  GPUs are written in another order each time
    deviceplugin/test_reporting.py::test_the_order_the_gpus_were_found_in_makes_no_difference
 8  each restart of kubelet leaves a loop behind that goes on writing
    test_restarts_of_kubelet_leave_nobody_behind_who_writes
    deviceplugin/test_kubelet.py::test_two_dozen_restarts_of_kubelet_are_answered_each_once
 9  kubelet's books name other GPUs than the container has
    test_kubelets_books_name_the_gpus_that_were_decided
10  limits by position of the annotation, which is not the order of CUDA; cores of the first GPU only
    deviceplugin/container/test_edits.py::test_limit_i_is_that_of_the_gpu_with_the_ith_address
11  the second container gets the GPUs of the first, and its folder is wiped
    deviceplugin/test_agent.py::test_containers_are_served_one_after_the_other_without_waiting_for_the_write
    deviceplugin/container/test_hook.py::test_a_container_gets_fresh_folders_of_its_own_open_to_its_user
12  one bad GPU takes the node down
    deviceplugin/nvml/test_isolation.py::test_a_call_that_fails_on_one_gpu_changes_nothing_of_the_others
    deviceplugin/test_daemon_health.py::test_what_no_event_tells_is_seen_and_each_gpu_has_its_own_reason
13  an API server that does not answer holds up kubelet
    deviceplugin/test_daemon_with_cluster.py::test_an_api_server_that_hangs_holds_up_no_allocate
14  no GPU ever recovers, memory errors go unseen, the switches do not combine
    deviceplugin/test_daemon_health.py::test_a_gpu_with_a_fatal_xid_leaves_alone_and_returns_by_itself
    deviceplugin/health/test_step.py::test_uncorrected_errors_count_when_they_become_more
    deviceplugin/health/test_step.py::test_the_switches
    deviceplugin/nvml/test_events.py::test_monitoring_is_lost_while_no_event_set_works_and_comes_back_by_itself
15  schedulers 2.8 and 2.9 do not hear of changes
    deviceplugin/test_hami_scheduler.py::test_a_2_9_scheduler_hears_of_every_change_and_is_not_answered_else
16  a missing key crashes, a bad file counts as none, zero cannot be said
    deviceplugin/configuration/test_hami.py::test_a_mistake_in_config_json_is_named
    deviceplugin/configuration/test_hami.py::test_zero_false_and_nothing_override_where_they_mean_something
    deviceplugin/configuration/test_hami.py::test_the_flags_that_nvidias_plugin_reads_from_the_same_file_count
    deviceplugin/configuration/test_effective.py::test_what_print_config_prints_is_read_back_as_the_same
17  a library in use is overwritten while containers are served
    deviceplugin/container/test_hook_install.py::test_a_running_container_keeps_the_library_it_has_mapped
    deviceplugin/container/test_hook_install.py::test_hamis_file_in_use_is_replaced_by_a_link_not_written_to
18  folders that could not be made, and a lock folder that a reboot took, are found out by the user's process
    deviceplugin/container/test_hook.py::test_a_folder_that_cannot_be_made_is_told_not_ignored
    deviceplugin/container/test_hook.py::test_the_owner_of_a_folder_does_not_matter
19  the environment of the pod wins (kubelet and runtimes have it so; GPUs by CDI do not depend on it, and the webhook
    refuses what lifts limits)
    deviceplugin/container/test_edits.py::test_each_strategy_tells_the_runtime_in_its_own_way
    scheduler_ext/admission/test_admit.py::test_which_variables_lift_limits
20  whoever may write a pod's annotations decides how much it gets
    deviceplugin/test_agent.py::test_a_pod_whose_decision_was_changed_is_refused_and_marked_and_the_lock_is_released
    deviceplugin/allocation/test_immediate.py::test_a_proven_pod_that_must_not_be_served_is_named
    deviceplugin/container/test_edits.py::test_a_share_without_a_size_is_limited_to_the_whole_gpu
    scheduler_ext/admission/test_admit.py::test_what_only_the_scheduler_writes_is_stripped_and_the_authors_wishes_stay
21  a tenant's file crashes the monitor or leads it astray
    deviceplugin/test_region_files.py::test_links_pipes_and_folders_in_place_of_a_region_are_refused
    deviceplugin/container/test_container_folders.py::test_folders_of_pods_long_gone_are_removed_and_nothing_they_point_at
    deviceplugin/usage/test_shared_region.py::test_no_bytes_raise_anything_but_a_region_error
22  a token that may write every node and pod: a matter of deployment
23  host folders and sockets that nothing uses: a matter of deployment
24  needless reads and writes of the Node, eight calls for each container
    deviceplugin/test_daemon_with_cluster.py::test_while_nothing_changes_nothing_is_written_or_asked_however_often_the_gpus_are_read
    test_serving_a_pod_asks_nothing_and_writes_three_times
25  every node watches the pods of all nodes
    test_pods_of_other_nodes_are_not_asked_for
26  links: no fabric, none above 18, none that fails later, no asymmetric counts; a bad score stays on the node
    deviceplugin/machine/test_topology.py::test_switch_links_count_only_in_one_working_fabric
    deviceplugin/nvml/test_topology.py::test_thirty_six_links_count_thirty_six
    deviceplugin/test_daemon_machine.py::test_a_link_that_goes_down_lowers_the_score_and_one_that_is_down_at_one_end_is_told
    test_a_score_that_nobody_can_read_is_replaced
27  an unknown NUMA node is node 0
    deviceplugin/machine/test_discovery.py::test_an_unknown_numa_node_stays_unknown
    proto/annotations/test_node_register.py::test_an_unknown_numa_node_is_not_node_0
28  MIG on demand destroys instances and needs specs renewed (instances on demand are refused; existing ones are shared)
    deviceplugin/configuration/test_hami.py::test_dynamic_mig_is_refused_for_the_node_that_asks_for_it_and_for_no_other
    deviceplugin/test_daemon_machine.py::test_mig_instances_of_strategy_mixed_have_a_resource_of_their_own
29  no probes, no metrics of its own, none of init containers, no word when an allocation fails
    deviceplugin/test_daemon_metrics.py::test_a_scrape_shows_the_daemon_its_gpus_and_what_a_container_really_uses
    test_a_failed_allocation_is_an_event_of_the_pod_and_counted
    deviceplugin/usage/test_accounts.py::test_ended_pods_and_containers_hold_nothing
30  a library in another folder is not found by itself
    deviceplugin/container/test_edits.py::test_a_library_elsewhere_is_told_where_it_lies
"""

import ast
import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deviceplugin.allocation.immediate import NodeView, Refused, prove
from deviceplugin.apiserver import OwnNode
from deviceplugin.gpus import Inventory
from deviceplugin.news import News
from deviceplugin.replicas import split_replica
from proto.annotations.keys import BIND_PHASE, NODE_LOCK, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_lock import NodeLock
from proto.annotations.node_register import decode_register
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec
from simulation.apiserver.faults import Fault
from tests.deviceplugin.agent_rig import running
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import INVENTORY, NODE, PAIR, A, a100, share
from tests.deviceplugin.registration import eventually, until

TESTS = Path(__file__).parents[1]
ONE = (share(A),)


def listed() -> Iterator[str]:
    """The tests of the table, each as a path and a name."""
    for line in (__doc__ or "").splitlines():
        found = re.fullmatch(r"    (?:(\S+\.py)::)?(test_\w+)", line)
        if found:
            yield f"{found[1] or Path(__file__).relative_to(TESTS)}::{found[2]}"


def test_every_weakness_has_its_tests_and_every_test_is_there() -> None:
    numbers = re.findall(r"^ ?(\d+)  ", __doc__ or "", re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 31))
    names = list(listed())
    there = {
        f"{path}::{node.name}"
        for path in {name.partition("::")[0] for name in names}
        for node in ast.parse((TESTS / path).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert [name for name in names if name not in there] == []
    assert len(names) > len(numbers)


def refusing(verb: str, resource: str, times: int = 2) -> Fault:
    return Fault(verbs=frozenset({verb}), resources=frozenset({resource}), subresource="", status=500, times=times)


async def test_the_lock_is_released_although_the_api_server_refuses_at_first() -> None:
    async with running() as rig:
        rig.lock("train")
        rig.bind("train", (ONE,))
        for fault in (refusing("patch", "pods", 1), refusing("get", "nodes", 1), refusing("patch", "nodes", 1)):
            rig.server.inject(fault)
        await rig.allocate(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        assert rig.annotations("pods", "train")[BIND_PHASE] == "success"


def test_a_namesake_of_the_locks_pod_does_not_inherit_the_lock() -> None:
    lock = NodeLock(taken_at=datetime(2030, 1, 1, tzinfo=UTC), namespace="default", pod="web-0")
    anew = Pod(
        metadata=ObjectMeta(name="web-0", namespace="default", uid="another"),
        spec=PodSpec(node_name=NODE, containers=[Container(name="c0")]),
    )
    view = NodeView(
        name=NODE,
        resource="nvidia.com/gpu",
        pods=(anew,),
        lock=lock,
        inventory=INVENTORY,
        remembered={"uid-web-0": frozenset({0})},
        recorded={},
    )
    sentence = f"{NODE_LOCK} of node {NODE} names pod default/web-0, which waits for no GPUs here"
    assert prove(view, 1) == Refused(sentence, may_change=True)


async def test_a_report_that_failed_is_repeated() -> None:
    gpus = [Inventory(devices=(a100(A, 0),))]
    async with running(gpus=gpus) as rig:
        await until(lambda: NODE_REGISTER in rig.annotations("nodes", NODE))
        rig.server.inject(refusing("patch", "nodes"))
        more = (a100(A, 0, slots=7),)
        gpus[0] = Inventory(devices=more)
        await until(lambda: decode_register(rig.annotations("nodes", NODE)[NODE_REGISTER]) == more)


async def test_restarts_of_kubelet_leave_nobody_behind_who_writes() -> None:
    async with running() as rig:
        for times in range(2, 6):
            await rig.kubelet.stop()
            await rig.kubelet.start()
            await rig.kubelet.registered(times)
        changed = (a100(A, 0), PAIR[1])
        rig.gpus[0] = Inventory(devices=changed[:1])
        await until(lambda: len(decode_register(rig.annotations("nodes", NODE)[NODE_REGISTER])) == 2)
        await until(lambda: not decode_register(rig.annotations("nodes", NODE)[NODE_REGISTER])[1].healthy)
        await asyncio.sleep(0.6)
        assert rig.node_writes() == 2


async def test_serving_a_pod_asks_nothing_and_writes_three_times() -> None:
    """The pod, and the release of the lock: one look and one write."""
    async with running() as rig:
        rig.lock("train")
        rig.bind("train", (ONE,))
        assert await rig.prefer([f"{A}-0"], 1) == [f"{A}-0"]
        await until(lambda: rig.node_writes() == 1)
        before = len(rig.server.requests)
        await rig.allocate(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        calls = [(request.verb, request.resource) for request in rig.server.requests[before:]]
        assert calls == [("patch", "pods"), ("get", "nodes"), ("patch", "nodes")]


async def test_pods_of_other_nodes_are_not_asked_for() -> None:
    async with running() as rig:
        own = OwnNode(rig.api, NODE, News())
        following = asyncio.create_task(own.follow_pods())
        container = {"name": "c0", "image": "i"}
        for name, node in (("theirs", "node-2"), ("ours", NODE)):
            spec = {"nodeName": node, "containers": [container]}
            rig.server.create({"kind": "Pod", "metadata": {"name": name}, "spec": spec})
        await until(lambda: len(own.pods) > 0)
        assert [pod.metadata.name for pod in own.pods.values()] == ["ours"]
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def test_a_score_that_nobody_can_read_is_replaced() -> None:
    async with running() as rig:
        await until(lambda: NODE_SCORE in rig.annotations("nodes", NODE))
        score = rig.annotations("nodes", NODE)[NODE_SCORE]
        rig.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_SCORE: "nonsense"}}})
        await until(lambda: rig.annotations("nodes", NODE)[NODE_SCORE] == score)


@pytest.mark.needs_compiler
async def test_kubelets_books_name_the_gpus_that_were_decided() -> None:
    async with daemon() as node:
        admit = node.kubelet.devices.admit

        async def admit_known(pod: Pod) -> None:
            """A hint that comes too late is none."""
            await eventually(lambda: node.counts("topogpu_pods"))
            await admit(pod)

        node.kubelet.devices.admit = admit_known  # type: ignore[method-assign]
        uid = node.bind("train", 3, 1)
        await node.runs("train")
        (held,) = node.kubelet.devices.held(uid)
        assert {split_replica(identifier)[0] for identifier in held.ids} == {node.uuid(1), node.uuid(3)}


@pytest.mark.needs_compiler
async def test_a_failed_allocation_is_an_event_of_the_pod_and_counted() -> None:
    async with daemon() as node:
        node.bind("forged", lent=((share(A),),))
        await until(lambda: node.status("forged")["phase"] == "Failed")
        problem = f"pod default/forged, container c0: {A} is not a GPU of this node"
        await until(lambda: any(problem in message for message in node.events("UnexpectedAdmissionError")))
        counted = 'topogpu_allocations_total{call="Allocate",outcome="refused",strategy="immediate"}'
        assert (await node.series())[counted] == 1
