"""Two replicas and one lease, on the embedded API server."""

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from proto.annotations import keys
from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.client import ApiServer
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import running_extender
from scheduler_ext.settings import LeaseSettings
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.verbs.state_machine import SentBinding
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import FAST, Rig, extender_for

ELECTED = LeaseSettings(elects=True, name="sched", namespace="kube-system", identity="host-1")


def lease_json(holder: str, seconds: int = 15) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "sched", "namespace": "kube-system"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": "2030-01-01T00:00:00.000000Z"},
    }


def hold(server: EmbeddedApiServer, holder: str, renewed: str) -> None:
    spec = {"spec": {"holderIdentity": holder, "renewTime": renewed}}
    server.patch("leases", "sched", spec, namespace="kube-system")


async def leads(rig: Rig) -> bool:
    return bool((await rig.filter(pod_json("probe"), "n"))["NodeNames"])


async def test_only_the_holder_decides_and_knows_what_was_decided_before() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        server.create(lease_json("host-2_b"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            pod = rig.add_pod("p")
            answer = await rig.filter(pod, "n")
            problem = "this replica does not lead: lease kube-system/sched was last renewed by host-2_b"
            assert (answer["Error"], answer["NodeNames"]) == (problem, None)
            assert await rig.bind(pod, "n") == problem
            assert (await rig.status("/readyz"))[0] == 200

            async with extender_for(server, FAST, synced=True) as other:
                assert await other.bind(rig.add_pod("first"), "n") == ""
            hold(server, "host-1_a", "2030-01-01T00:00:05.000000Z")

            async def full() -> bool:
                return "n" in ((await rig.filter(pod, "n"))["FailedNodes"] or {})

            await until(full)


async def test_the_leader_has_the_name_of_the_holder_s_host() -> None:
    async with EmbeddedApiServer() as server:
        server.create(lease_json("host-2_b"))
        with NamedTemporaryFile("w") as kubeconfig:
            kubeconfig.write(server.kubeconfig())
            kubeconfig.flush()
            api = await ApiServer.connect(kubeconfig.name)
        async with running_extender(api, FAST, RequestSettings(), ELECTED) as extender:
            leadership = extender.parts.leadership
            for holder, name in (("host-2_b", "host-2"), ("host-1_a", "host-1"), ("", "")):
                hold(server, holder, "2030-01-01T00:00:05.000000Z")

                async def is_named(expected: str = name) -> bool:
                    return leadership.leader() == expected

                await until(is_named)
        await api.close()


async def test_a_lost_lease_ends_the_leadership() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await until(lambda: leads(rig))
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")

            async def follows() -> bool:
                return not await leads(rig)

            await until(follows)


async def test_readyz_says_that_nobody_renews_the_lease() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        server.create(lease_json("host-2_b", seconds=1))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:

            async def silent() -> bool:
                return (await rig.status("/readyz"))[0] == 503

            await until(silent)
            problem = "no replica leads: host-2_b has not renewed lease kube-system/sched"
            assert problem in (await rig.status("/readyz"))[1]
            server.patch("leases", "sched", {"spec": {"leaseDurationSeconds": 60}}, namespace="kube-system")
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")

            async def renewed() -> bool:
                return not await silent()

            await until(renewed)


async def test_an_api_server_restored_from_a_backup_is_followed() -> None:
    """What was bound since the backup is unknown to it, and another process of the same host holds the Lease."""
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", gpus=1))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:

            async def bound(pod: dict[str, Any]) -> bool:
                return bool((await rig.filter(pod, "n"))["NodeNames"]) and not await rig.bind(pod, "n")

            kept = rig.add_pod("kept", memory_mib=40960)
            backup = server.store.backup()
            lost = rig.add_pod("lost", memory_mib=40960)
            await until(lambda: bound(lost))
            for second in range(20):
                hold(server, "host-1_a", f"2030-01-01T00:00:{second:02}.000000Z")
            assert not await bound(kept)
            await server.restore(backup)
            hold(server, "host-1_b", "2030-01-01T00:01:00.000000Z")
            await until(lambda: bound(kept))
            assert not await bound(rig.add_pod("after", memory_mib=40960))


@pytest.mark.parametrize("component", ["hami-scheduler", "scheduler"])
async def test_the_leader_labels_itself_and_the_other_replicas_but_not_another_schedulers(component: str) -> None:
    async with EmbeddedApiServer() as server:
        kin = {"app.kubernetes.io/component": component, "app.kubernetes.io/name": "a"}
        for name, labels in {
            "own": kin,
            "other": {**kin, keys.SCHEDULER_ROLE: "leader"},
            "theirs": {**kin, "app.kubernetes.io/name": "b", keys.SCHEDULER_ROLE: "leader"},
        }.items():
            pod = pod_json(name, gpus=0)
            pod["metadata"] |= {"namespace": "kube-system", "labels": labels}
            server.create(pod)
        in_a_pod = LeaseSettings(pod_name="own", pod_namespace="kube-system")
        async with extender_for(server, FAST, synced=True, lease=in_a_pod):

            async def labelled() -> bool:
                pods = {each["metadata"]["name"]: each["metadata"]["labels"] for each in server.store.objects("pods")}
                roles = {name: labels.get(keys.SCHEDULER_ROLE) for name, labels in pods.items()}
                return roles == {"own": "leader", "other": "follower", "theirs": "leader"}

            await until(labelled)


async def test_a_bind_that_waits_for_a_lock_is_not_written_once_the_lease_is_lost() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("other"))
        server.create(node_json("n", allocation="immediate"))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await until(lambda: leads(rig))
            assert await rig.bind(rig.add_pod("first"), "n") == ""
            waiting = asyncio.create_task(rig.bind(rig.add_pod("second"), "n"))
            assert await rig.bind(rig.add_pod("third"), "other") == ""
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")

            async def follows() -> bool:
                return not await leads(rig)

            await until(follows)
            rig.set_phase("first", "success")
            assert "this replica does not lead" in await waiting
            assert "nodeName" not in rig.pod("second")["spec"]


async def test_no_gpu_is_booked_twice_however_the_lease_moves() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", gpus=2, replicas=3))
        server.create(lease_json("host-1_0"))
        other = replace(ELECTED, identity="host-2")
        async with (
            extender_for(server, FAST, synced=True, lease=ELECTED) as one,
            extender_for(server, FAST, synced=True, lease=other) as two,
        ):
            for turn in range(8):
                hold(server, f"host-{1 + turn % 2}_{turn}", f"2030-01-01T00:00:{turn:02}.000000Z")
                pods = [one.add_pod(f"p-{turn}-{number}") for number in range(2)]
                tries = [try_to_bind(replica, pod) for pod in pods for replica in (one, two)]
                await asyncio.gather(*tries)
            held = [
                each["metadata"]["annotations"][keys.DEVICES_ALLOCATED].partition(",")[0]
                for each in server.store.objects("pods")
                if each["spec"].get("nodeName")
            ]
            assert sorted(held) == ["GPU-n-0"] * 3 + ["GPU-n-1"] * 3


async def test_a_leader_that_comes_back_keeps_what_a_binding_without_an_answer_may_still_take() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        server.create(node_json("full", replicas=1))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await until(lambda: leads(rig))
            sent, other = rig.add_pod("sent"), rig.add_pod("other")
            assert (await rig.filter(sent, "full"))["NodeNames"] == ["full"]
            await rig.bind_without_an_answer(sent, "full", "before")
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")

            async def follows() -> bool:
                return not await leads(rig)

            await until(follows)
            hold(server, "host-1_c", "2030-01-01T00:00:10.000000Z")
            await until(lambda: leads(rig))
            assert set((await rig.filter(other, "full"))["FailedNodes"] or {}) == {"full"}


async def try_to_bind(rig: Rig, pod: dict[str, Any]) -> None:
    if (await rig.filter(pod, "n"))["NodeNames"]:
        await rig.bind(pod, "n")


async def test_a_leader_that_comes_back_has_forgotten_what_it_promised_before() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            pod = rig.add_pod("p")

            async def promised() -> bool:
                return bool((await rig.filter(pod, "n"))["NodeNames"] == ["n"])

            await until(promised)
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")
            async with extender_for(server, FAST, synced=True) as other:
                assert await other.bind(rig.add_pod("first"), "n") == ""
            hold(server, "host-1_a", "2030-01-01T00:00:10.000000Z")

            async def decides() -> bool:
                return bool((await rig.filter(pod_json("probe"), "n"))["Error"] == "")

            await until(decides)
            gone = "it has no reservation there and does not fit: 1/1 CardTimeSlicingExhausted"
            problem = f"pod default/p cannot be bound to node n: {gone}"
            assert await rig.bind(pod, "n") == problem


def binds(server: EmbeddedApiServer) -> str:
    """Which process the extenders' own Lease names."""
    lease = server.store.get("leases", "kube-system", "sched-binding")
    return str(lease["spec"].get("holderIdentity") or "") if lease is not None else ""


async def decides(rig: Rig) -> bool:
    """Asked with a pod that fits nowhere, so that nothing is reserved."""
    return not (await rig.filter(pod_json("wide", gpus=5), "n"))["Error"]


async def test_a_new_leader_decides_nothing_while_a_binding_of_the_one_before_is_on_its_way() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        server.create(lease_json("host-1_a"))
        other = replace(ELECTED, identity="host-2")
        async with (
            extender_for(server, FAST, synced=True, lease=ELECTED) as rig,
            extender_for(server, FAST, synced=True, lease=other) as successor,
        ):
            await until(lambda: decides(rig))
            late = server.inject(Fault(subresource="binding", latency_seconds=2))
            first, second = rig.add_pod("first"), rig.add_pod("second")
            assert (await rig.filter(first, "n"))["NodeNames"] == ["n"]
            binding = asyncio.create_task(rig.bind(first, "n"))
            await until(lambda: sent(server, "first"))
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")
            taken_over = False

            async def answered() -> bool:
                nonlocal taken_over
                answer = await successor.filter(second, "n")
                taken_over = taken_over or "waits until nothing more is bound by host-1_" in answer["Error"]
                assert answer["NodeNames"] is None
                return bool(answer["FailedNodes"])

            await until(answered)
            assert taken_over
            assert await binding == ""
            server.faults.remove(late)
            assert binds(server).startswith("host-2_")


async def sent(server: EmbeddedApiServer, pod: str) -> bool:
    return any((each.subresource, each.name) == ("binding", pod) for each in server.requests)


async def test_who_left_in_order_is_not_waited_for() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await until(lambda: leads(rig))
            assert binds(server).startswith("host-1_")
            assert await rig.bind(rig.add_pod("p"), "n") == ""
        assert binds(server) == ""


def binding_lease_json(holder: str, seconds: int) -> dict[str, Any]:
    lease = lease_json(holder, seconds)
    lease["metadata"]["name"] = "sched-binding"
    return lease


async def test_who_ended_without_a_word_is_waited_for_and_its_late_binding_is_seen() -> None:
    """The API server is slow with a Binding whose sender is gone, and carries it out once the next leader is chosen."""
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        server.create(lease_json("host-2_b", seconds=60))
        server.create(binding_lease_json("host-1_gone", seconds=3))
        settings = replace(ELECTED, identity="host-2")
        async with extender_for(server, FAST, synced=True, lease=settings) as rig:
            pod, asked = rig.add_pod("p"), 0

            async def answered() -> bool:
                nonlocal asked
                asked += 1
                if asked == 3:
                    late = pod_json("late")
                    late["metadata"]["annotations"] = {keys.DEVICES_ALLOCATED: "GPU-n-0,NVIDIA,1000,0:;"}
                    late["spec"]["nodeName"] = "n"
                    server.create(late)
                answer = await rig.filter(pod, "n")
                assert answer["NodeNames"] is None
                return bool(answer["FailedNodes"])

            await until(answered)
            assert asked > 3


async def test_who_is_killed_and_comes_back_with_its_files_waits_for_nothing_and_holds_what_it_had_sent(
    tmp_path: Path,
) -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        server.create(node_json("m", replicas=1))
        server.create(lease_json("host-1_a", seconds=3600))
        sent, other = (server.create(pod_json(name)) for name in ("sent", "other"))
        left = JournalFiles(tmp_path)
        shares = ((DeviceShare(uuid=DeviceUUID("GPU-n-0"), memory_mib=1000, cores=0),),)
        left.add(SentBinding(PodName(namespace="default", name="sent"), sent["metadata"]["uid"], "n", shares))
        left.add(SentBinding(PodName(namespace="default", name="gone"), "uid-gone", "m", shares))
        process = left.process
        left.close()
        server.create(binding_lease_json(f"host-1_{process}", seconds=3600))
        files = JournalFiles(tmp_path)
        lease = replace(ELECTED, process=files.process)
        async with extender_for(server, FAST, synced=True, lease=lease, files=files) as rig:
            await until(lambda: decides(rig))
            assert set((await rig.filter(other, "n"))["FailedNodes"]) == {"n"}
            assert (await rig.filter(other, "m"))["NodeNames"] == ["m"]
            assert (await rig.filter(sent, "n", "m"))["NodeNames"] == ["n"]
            assert await rig.bind(sent, "n") == ""
        assert list(tmp_path.glob("*.json")) == []


async def test_what_was_sent_before_another_process_bound_pods_is_not_bound_again(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        server.create(node_json("m", replicas=1))
        server.create(lease_json("host-1_a", seconds=3600))
        sent = server.create(pod_json("sent"))
        left = JournalFiles(tmp_path)
        shares = ((DeviceShare(uuid=DeviceUUID("GPU-n-0"), memory_mib=1000, cores=0),),)
        left.add(SentBinding(PodName(namespace="default", name="sent"), sent["metadata"]["uid"], "n", shares))
        left.close()
        other = pod_json("other")
        other["metadata"]["annotations"] = {keys.DEVICES_ALLOCATED: "GPU-n-0,NVIDIA,1000,0:;"}
        other["spec"]["nodeName"] = "n"
        server.create(other)
        server.create(binding_lease_json("host-2_b", seconds=1))
        files = JournalFiles(tmp_path)
        lease = replace(ELECTED, process=files.process)
        settings = replace(FAST, binding_seconds=1.0)
        async with extender_for(server, settings, synced=True, lease=lease, files=files) as rig:
            await until(lambda: decides(rig))
            assert (await rig.filter(sent, "n", "m"))["NodeNames"] == ["m"]
            assert await rig.bind(sent, "m") == ""
        assert list(tmp_path.glob("*.json")) == []


async def test_who_is_killed_and_leads_no_more_keeps_the_binding_lease_while_its_binding_may_be_carried_out(
    tmp_path: Path,
) -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        server.create(lease_json("host-2_b", seconds=3600))
        sent = server.create(pod_json("sent"))
        left = JournalFiles(tmp_path)
        shares = ((DeviceShare(uuid=DeviceUUID("GPU-n-0"), memory_mib=1000, cores=0),),)
        left.add(SentBinding(PodName(namespace="default", name="sent"), sent["metadata"]["uid"], "n", shares))
        process = left.process
        left.close()
        server.create(binding_lease_json(f"host-1_{process}", seconds=3600))
        files = JournalFiles(tmp_path)
        async with extender_for(server, FAST, synced=True, lease=replace(ELECTED, process=process), files=files):
            pass  # It leaves in order: a process with nothing under way would release the Lease.
        held = server.store.get("leases", "kube-system", "sched-binding")
        assert held is not None
        assert held["spec"].get("holderIdentity") == f"host-1_{process}"


async def test_who_is_killed_and_decides_alone_holds_what_it_had_sent_before_anything_is_decided(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", replicas=1))
        sent, other = (server.create(pod_json(name)) for name in ("sent", "other"))
        left = JournalFiles(tmp_path)
        shares = ((DeviceShare(uuid=DeviceUUID("GPU-n-0"), memory_mib=1000, cores=0),),)
        left.add(SentBinding(PodName(namespace="default", name="sent"), sent["metadata"]["uid"], "n", shares))
        left.close()
        server.inject(Fault(verbs=frozenset({"get"}), resources=frozenset({"pods"}), name="sent", status=503))
        settings = replace(FAST, sync_wait_seconds=1.0)
        async with extender_for(server, settings, synced=True, files=JournalFiles(tmp_path)) as rig:
            answer = await rig.filter(other, "n")
            assert "the outcome of Bindings that were sent from here before" in answer["Error"]
            server.faults.clear()
            await until(lambda: decides(rig))
            assert set((await rig.filter(other, "n"))["FailedNodes"]) == {"n"}
            assert await rig.bind(sent, "n") == ""
        assert [each.message.startswith("the outcome of") for each in caplog.records].count(True) == 1


async def test_without_the_right_to_write_the_lease_nothing_is_decided_and_the_answer_says_why() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        server.create(lease_json("host-1_a", seconds=3600))
        server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"leases"}), status=403))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:

            async def told() -> bool:
                error: str = (await rig.filter(pod_json("probe"), "n"))["Error"]
                return "cannot write lease kube-system/sched-binding: " in error and "403 Forbidden" in error

            await until(told)
            server.faults.clear()
            await until(lambda: leads(rig))


@pytest.mark.parametrize("taken", [True, False])
async def test_who_loses_the_binding_lease_binds_nothing_until_it_has_it_again(*, taken: bool) -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        server.create(lease_json("host-1_a", seconds=3600))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await until(lambda: leads(rig))
            if taken:
                stolen = {"spec": {"holderIdentity": "host-2_thief", "leaseDurationSeconds": 2, "renewTime": None}}
                server.patch("leases", "sched-binding", stolen, namespace="kube-system")

                async def waits() -> bool:
                    error: str = (await rig.filter(pod_json("probe"), "n"))["Error"]
                    return "waits until nothing more is bound by host-2_thief" in error

                await until(waits)
            else:
                server.delete("leases", "sched-binding", namespace="kube-system")

            async def holds() -> bool:
                return binds(server).startswith("host-1_")

            pod = rig.add_pod("p")

            async def bound() -> bool:
                return await rig.bind(pod, "n") == ""

            await until(bound)
            await until(holds)
