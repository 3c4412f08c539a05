import asyncio
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.agent import log_waits
from deviceplugin.inventory import Inventory
from deviceplugin.metrics.view import DaemonView
from proto.annotations.keys import (
    BIND_PHASE,
    DEVICES_TO_ALLOCATE,
    NODE_ALLOCATION,
    NODE_LIMITS,
    NODE_LOCK,
    NODE_LOCK_UID,
    NODE_REGISTER,
    NODE_SCORE,
)
from proto.annotations.node_register import decode_register
from proto.kubernetes.objects import EnvVar
from simulation.apiserver import Fault
from simulation.hami_core import install_placeholder
from tests.deviceplugin.agent_rig import running
from tests.deviceplugin.gpus import NODE, PAIR, A, B, a100, share
from tests.deviceplugin.metrics_view import view
from tests.polling import until

ONE = (share(A),)
TWO = (share(A, 1000), share(B, 2000))


def refusing(verb: str, resource: str, times: int = 2) -> Fault:
    return Fault(verbs=frozenset({verb}), resources=frozenset({resource}), subresource="", status=500, times=times)


async def test_a_daemon_that_is_not_ready_logs_each_reason_once_until_it_is(caplog: pytest.LogCaptureFixture) -> None:
    ready = view()
    driver, kubelet = replace(ready, gpus_known=False), replace(ready, registered=False)
    seen = [driver, driver, kubelet, replace(ready, api_problem="refused"), driver, ready, driver]

    def now() -> DaemonView:
        return seen.pop(0) if seen else ready

    waits = asyncio.create_task(log_waits(now, silent_seconds=0))
    await until(lambda: not seen)
    waits.cancel()
    reasons = ("the NVIDIA driver has not answered yet", "kubelet has not accepted the registration yet")
    assert caplog.messages == [f"not ready: {reasons[each]}" for each in (0, 1, 0)]


async def test_the_node_tells_its_gpus_once_and_again_only_after_a_change() -> None:
    async with running() as rig:
        await until(lambda: NODE_REGISTER in rig.annotations("nodes", NODE))
        annotations = rig.annotations("nodes", NODE)
        assert decode_register(annotations[NODE_REGISTER]) == PAIR
        assert annotations[NODE_ALLOCATION] == "immediate"
        rig.server.patch("nodes", NODE, {"metadata": {"labels": {"touched": "yes"}}})
        rig.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_REGISTER: None}}})
        await until(lambda: NODE_REGISTER in rig.annotations("nodes", NODE))
        assert rig.node_writes() == 2


async def test_a_pod_gets_its_gpus_and_the_cluster_is_told() -> None:
    async with running(unenforced=True) as rig:
        rig.lock("train")
        rig.bind("train", (TWO,))
        assert await rig.prefer([f"{A}-0", f"{A}-1", f"{B}-0", f"{B}-1"], 2) == [f"{A}-0", f"{B}-0"]
        env = await rig.allocate(f"{A}-0", f"{B}-0")
        assert env["NVIDIA_VISIBLE_DEVICES"] == f"{A},{B}"
        assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_MEMORY_LIMIT_1"]) == ("1000m", "2000m")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        annotations = rig.annotations("pods", "train")
        assert annotations[BIND_PHASE] == "success"
        assert annotations[DEVICES_TO_ALLOCATE] == ";"


async def test_ids_of_other_gpus_are_answered_with_the_decided_ones() -> None:
    async with running() as rig:
        rig.bind("train", (ONE,))
        assert (await rig.allocate(f"{B}-2"))["NVIDIA_VISIBLE_DEVICES"] == A


async def test_containers_are_served_one_after_the_other_without_waiting_for_the_write() -> None:
    async with running() as rig:
        rig.server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"pods"}), status=500, times=2))
        rig.bind("train", (ONE, (), (share(B),)), init=1)
        assert (await rig.allocate(f"{A}-0"))["NVIDIA_VISIBLE_DEVICES"] == A
        assert (await rig.allocate(f"{A}-0"))["NVIDIA_VISIBLE_DEVICES"] == B
        await until(lambda: rig.annotations("pods", "train")[BIND_PHASE] == "success")
        assert rig.annotations("pods", "train")[DEVICES_TO_ALLOCATE] == ";;;"


async def test_an_allocate_that_is_ahead_of_the_watch_waits_for_the_pod() -> None:
    async with running() as rig:
        early = asyncio.create_task(rig.allocate(f"{A}-0"))
        await rig.answers()
        rig.bind("train", (ONE,))
        assert (await early)["NVIDIA_VISIBLE_DEVICES"] == A


async def test_an_allocate_for_nobody_is_refused_after_a_while() -> None:
    async with running(patience_seconds=0.5) as rig:
        began = time.monotonic()
        assert await rig.refused(f"{A}-0") == f"no known pod on node {NODE} waits for 1 GPUs"
        assert time.monotonic() - began >= 0.5


async def test_a_pod_that_names_gpus_itself_is_refused_and_told_which_variable() -> None:
    """Kubelet names the pod's variables after ours, and runtimes take the last."""
    async with running() as rig:
        rig.bind("greedy", (ONE,), env=[EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")])
        assert "pod default/greedy: container c0 sets NVIDIA_VISIBLE_DEVICES itself" in await rig.refused(f"{A}-0")
        await until(lambda: rig.annotations("pods", "greedy")[BIND_PHASE] == "failed")


async def test_the_lock_of_another_pod_is_left_alone() -> None:
    async with running() as rig:
        rig.bind("train", (ONE,))
        await rig.allocate(f"{A}-0")
        rig.lock("train-2")
        await until(lambda: rig.annotations("pods", "train")[BIND_PHASE] == "success")
        await rig.has_looked_at_the_lock(1)
        assert NODE_LOCK in rig.annotations("nodes", NODE)


async def test_a_lock_goes_with_the_uid_beside_it_and_that_of_a_namesake_is_left_alone() -> None:
    async with running() as rig:
        rig.bind("train", (ONE,))
        uid = rig.server.store.get("pods", "default", "train")["metadata"]["uid"]  # type: ignore[index]
        rig.lock("train", uid=uid)
        await rig.allocate(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        assert NODE_LOCK_UID not in rig.annotations("nodes", NODE)
        rig.bind("later", (ONE,))
        await rig.allocate(f"{A}-0")
        rig.lock("later", uid="uid-of-its-namesake")
        await until(lambda: rig.annotations("pods", "later")[BIND_PHASE] == "success")
        await rig.has_looked_at_the_lock(2)
        assert NODE_LOCK in rig.annotations("nodes", NODE)


async def test_a_pod_that_runs_but_was_never_recorded_is_caught_up_with() -> None:
    async with running() as rig:
        rig.lock("train")
        rig.bind("train", (ONE,))
        rig.server.patch("pods", "train", {"status": {"phase": "Running"}}, namespace="default", subresource="status")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        assert rig.annotations("pods", "train")[BIND_PHASE] == "success"


async def test_known_pods_are_served_while_the_api_server_is_away_and_recorded_when_it_returns() -> None:
    async with running() as rig:
        rig.bind("train", (ONE,))
        assert await rig.prefer([f"{A}-0"], 1) == [f"{A}-0"]
        await rig.server.go_offline()
        assert (await rig.allocate(f"{A}-0"))["NVIDIA_VISIBLE_DEVICES"] == A
        await rig.server.go_online()
        await until(lambda: rig.annotations("pods", "train")[BIND_PHASE] == "success")


async def test_without_a_driver_nothing_is_said_until_it_comes_and_lost_gpus_turn_unhealthy() -> None:
    gpus: list[Inventory] = []
    async with running(gpus=gpus) as rig:
        await until(lambda: rig.reads > 3)
        assert rig.kubelet.registrations == []
        assert NODE_REGISTER not in rig.annotations("nodes", NODE)
        gpus.append(Inventory(devices=PAIR, scores={}))
        await rig.kubelet.registered(1)
        await until(lambda: NODE_REGISTER in rig.annotations("nodes", NODE))
        gpus.clear()
        await until(lambda: not any(d.healthy for d in decode_register(rig.annotations("nodes", NODE)[NODE_REGISTER])))


async def test_where_the_library_is_installed_its_folders_are_made() -> None:
    with tempfile.TemporaryDirectory() as hami_core:
        vgpu = Path(hami_core, "vgpu")
        install_placeholder(Path(hami_core))
        async with running(hook_path=hami_core) as rig:
            rig.bind("train", (ONE,))
            env = await rig.allocate(f"{A}-0")
            stored: Any = rig.server.store.get("pods", "default", "train")
            uid = stored["metadata"]["uid"]
            assert env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == f"{hami_core}/vgpu/{uid}.cache"
            assert os.listdir(vgpu / "containers") == [f"{uid}_c0"]


async def test_a_part_of_a_gpu_is_refused_until_something_holds_containers_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deviceplugin.limits.watch.LOOK_SECONDS", 0.05)
    with tempfile.TemporaryDirectory() as hami_core:
        async with running(hook_path=hami_core) as rig:
            await until(lambda: rig.annotations("nodes", NODE).get(NODE_LIMITS) == "none")
            rig.bind("train", (ONE,))
            assert "add unenforced to the daemon's limits" in await rig.refused(f"{A}-0")
            install_placeholder(Path(hami_core))
            await until(lambda: rig.annotations("nodes", NODE)[NODE_LIMITS] == "hami-core")
            rig.server.delete("pods", "train", namespace="default")
            rig.bind("again", (ONE,))
            assert (await rig.allocate(f"{A}-1"))["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
            Path(hami_core, "vgpu/ld.so.preload").unlink()
            await until(lambda: rig.annotations("nodes", NODE)[NODE_LIMITS] == "none")
            await until(lambda: "HAMiCoreGone" in {event["reason"] for event in rig.server.store.objects("events")})


async def test_parts_that_nothing_limits_are_given_out_only_if_asked_for_and_never_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(hook_path="/nonexistent", unenforced=True) as rig:
        await until(lambda: rig.annotations("nodes", NODE).get(NODE_LIMITS) == "unenforced")
        rig.bind("train", (ONE,))
        assert "CUDA_DEVICE_MEMORY_SHARED_CACHE" not in await rig.allocate(f"{A}-0")
        await until(lambda: "LimitsNotEnforced" in {event["reason"] for event in rig.server.store.objects("events")})
    assert "limits are unenforced: the driver holds nothing" in caplog.text


async def test_whole_gpus_need_nothing_that_limits() -> None:
    async with running(hook_path="/nonexistent") as rig:
        rig.bind("train", ((share(A, 40960, 100),),))
        assert (await rig.allocate(f"{A}-0"))["NVIDIA_VISIBLE_DEVICES"] == A


async def test_the_lock_is_released_although_the_api_server_refuses_at_first() -> None:
    async with running() as rig:
        rig.lock("train")
        rig.bind("train", (ONE,))
        for fault in (refusing("patch", "pods", 1), refusing("get", "nodes", 1), refusing("patch", "nodes", 1)):
            rig.server.inject(fault)
        await rig.allocate(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        assert rig.annotations("pods", "train")[BIND_PHASE] == "success"


async def test_a_report_that_failed_is_repeated() -> None:
    gpus = [Inventory(devices=(a100(A, 0),))]
    async with running(gpus=gpus) as rig:
        await until(lambda: NODE_REGISTER in rig.annotations("nodes", NODE))
        rig.server.inject(refusing("patch", "nodes"))
        more = (a100(A, 0, replicas=7),)
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
        rig.gpus[0] = Inventory(devices=changed)
        await until(lambda: decode_register(rig.annotations("nodes", NODE)[NODE_REGISTER])[1].healthy)
        assert rig.node_writes() == 3


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


async def test_a_score_that_nobody_can_read_is_replaced() -> None:
    async with running() as rig:
        await until(lambda: NODE_SCORE in rig.annotations("nodes", NODE))
        score = rig.annotations("nodes", NODE)[NODE_SCORE]
        rig.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_SCORE: "nonsense"}}})
        await until(lambda: rig.annotations("nodes", NODE)[NODE_SCORE] == score)
