"""Two replicas and one lease, on the embedded API server."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proto.annotations import keys
from scheduler_ext.leadership.lease import LeaseSettings
from simulation.apiserver import EmbeddedApiServer
from tests.scheduler_ext.rig import FAST, Rig, eventually, extender_for, node_json, pod_json

ELECTED = LeaseSettings(name="sched", namespace="kube-system", identity="host-1")


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
        server.create(node_json("n", slots=1))
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

            await eventually(full)


async def test_a_lost_lease_ends_the_leadership() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n"))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await eventually(lambda: leads(rig))
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")

            async def follows() -> bool:
                return not await leads(rig)

            await eventually(follows)


async def test_readyz_can_require_the_leader() -> None:
    async with EmbeddedApiServer() as server:
        settings = type(FAST)(sync_wait_seconds=0.3, readyz_requires_leader=True)
        async with extender_for(server, settings, synced=False, lease=ELECTED) as rig:
            problem = "this replica does not lead: nobody holds lease kube-system/sched\n"
            assert await rig.status("/readyz") == (503, problem)


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

            await eventually(labelled)


async def test_a_bind_that_waits_for_a_lock_is_not_written_once_the_lease_is_lost() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", allocation="immediate"))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await eventually(lambda: leads(rig))
            assert await rig.bind(rig.add_pod("first"), "n") == ""
            waiting = asyncio.create_task(rig.bind(rig.add_pod("second"), "n"))
            await asyncio.sleep(0.1)
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")

            async def follows() -> bool:
                return not await leads(rig)

            await eventually(follows)
            rig.set_phase("first", "success")
            assert "this replica does not lead" in await waiting
            assert "nodeName" not in rig.pod("second")["spec"]


async def test_no_gpu_is_booked_twice_however_the_lease_moves() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", gpus=2, slots=3))
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
        server.create(node_json("full", slots=1))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            await eventually(lambda: leads(rig))
            sent, other = rig.add_pod("sent"), rig.add_pod("other")
            assert (await rig.filter(sent, "full"))["NodeNames"] == ["full"]
            await rig.bind_without_an_answer(sent, "full", "before")
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")

            async def follows() -> bool:
                return not await leads(rig)

            await eventually(follows)
            hold(server, "host-1_c", "2030-01-01T00:00:10.000000Z")
            await eventually(lambda: leads(rig))
            assert set((await rig.filter(other, "full"))["FailedNodes"] or {}) == {"full"}


async def try_to_bind(rig: Rig, pod: dict[str, Any]) -> None:
    if (await rig.filter(pod, "n"))["NodeNames"]:
        await rig.bind(pod, "n")


async def test_a_leader_that_comes_back_has_forgotten_what_it_promised_before() -> None:
    async with EmbeddedApiServer() as server:
        server.create(node_json("n", slots=1))
        server.create(lease_json("host-1_a"))
        async with extender_for(server, FAST, synced=True, lease=ELECTED) as rig:
            pod = rig.add_pod("p")

            async def promised() -> bool:
                return bool((await rig.filter(pod, "n"))["NodeNames"] == ["n"])

            await eventually(promised)
            hold(server, "host-2_b", "2030-01-01T00:00:05.000000Z")
            async with extender_for(server, FAST, synced=True) as other:
                assert await other.bind(rig.add_pod("first"), "n") == ""
            hold(server, "host-1_a", "2030-01-01T00:00:10.000000Z")

            async def decides() -> bool:
                return bool((await rig.filter(pod_json("probe"), "n"))["Error"] == "")

            await eventually(decides)
            gone = "its reservation has ended and it does not fit: 1/1 CardTimeSlicingExhausted"
            problem = f"pod default/p cannot be bound to node n: {gone}"
            assert await rig.bind(pod, "n") == problem
