"""The daemon beside HAMi's schedulers: their writes are played from their recorded forms, their reading is re-done.

Forms: pkg/scheduler, pkg/device and pkg/util/nodelock of Project-HAMi/HAMi, 2.4.1 to 2.10.0.
"""

import json
from datetime import UTC, datetime, timedelta

import pytest

from deviceplugin.inventory import Inventory
from deviceplugin.settings import HamiScheduler
from proto.annotations.keys import NODE_HANDSHAKE, NODE_LOCK, NODE_REGISTER, NODE_SCORE
from proto.kubernetes.objects import Binding, ObjectMeta, ObjectReference
from tests.deviceplugin.agent_rig import Rig, running
from tests.deviceplugin.gpus import NODE, PAIR, A, B
from tests.polling import until

REST = '"count":3,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true'
JSON_REGISTER = f'[{{"id":"{A}",{REST}}},{{"id":"{B}","index":1,{REST}}}]'
TEXT_9 = (
    f"{A},3,40960,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true,0,hami-core:"
    f"{B},3,40960,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true,1,hami-core:"
)
TEXT_7 = f"{A},3,40960,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true:{B},3,40960,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true:"
ONE_GPU = f"{A},NVIDIA,3000,30:;"


def filtered(rig: Rig, name: str, devices: str, containers: int = 1, init: int = 0) -> None:
    """The pod after HAMi's /filter: one merge patch on annotations and label."""
    asking = {"name": "x", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    all_containers = [{**asking, "name": f"c{n}"} for n in range(containers)]
    spec = {"initContainers": all_containers[:init], "containers": all_containers[init:]}
    rig.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    metadata = {
        "annotations": {
            "hami.io/vgpu-node": NODE,
            "hami.io/vgpu-time": "1893456000",
            "hami.io/vgpu-devices-to-allocate": devices,
            "hami.io/vgpu-devices-allocated": devices,
        },
        "labels": {"hami.io/vgpu-node": NODE},
    }
    rig.server.patch("pods", name, {"metadata": metadata}, namespace="default")


async def bound(rig: Rig, name: str) -> None:
    """HAMi's /bind: the node lock, the phase, then the Binding."""
    lock = f"2030-01-01T08:00:00+08:00,default,{name}"
    rig.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_LOCK: lock}}})
    phase = {"hami.io/bind-phase": "allocating", "hami.io/bind-time": "1893456000"}
    rig.server.patch("pods", name, {"metadata": {"annotations": phase}}, namespace="default")
    metadata = ObjectMeta(name=name, namespace="default")
    await rig.api.bind(Binding(metadata=metadata, target=ObjectReference(kind="Node", name=NODE)))


async def test_a_pod_of_hamis_scheduler_goes_from_filter_to_success() -> None:
    async with running() as rig:
        filtered(rig, "train", ONE_GPU)
        await bound(rig, "train")
        assert (await rig.allocate(f"{A}-0"))["NVIDIA_VISIBLE_DEVICES"] == A
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        annotations = rig.annotations("pods", "train")
        assert annotations["hami.io/bind-phase"] == "success"
        assert annotations["hami.io/vgpu-devices-allocated"] == ONE_GPU
        # HAMi takes a pod for unfinished while the vendor's word is in the value.
        assert "NVIDIA" not in annotations["hami.io/vgpu-devices-to-allocate"]


async def test_two_containers_keep_the_lock_until_the_second_has_its_gpus() -> None:
    async with running() as rig:
        filtered(rig, "train", f"{A},NVIDIA,3000,30:;{B},NVIDIA,3000,30:;", containers=2)
        await bound(rig, "train")
        assert (await rig.allocate(f"{A}-0"))["NVIDIA_VISIBLE_DEVICES"] == A
        await until(lambda: rig.annotations("pods", "train")["hami.io/vgpu-devices-to-allocate"].startswith(";GPU-b"))
        assert NODE_LOCK in rig.annotations("nodes", NODE)
        assert (await rig.allocate(f"{B}-0"))["NVIDIA_VISIBLE_DEVICES"] == B
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))


async def test_a_decision_that_cannot_be_served_is_told_as_failed_and_the_lock_is_gone() -> None:
    async with running() as rig:
        filtered(rig, "train", "GPU-gone,NVIDIA,3000,30:;")
        await bound(rig, "train")
        assert "GPU-gone is not a GPU of this node" in await rig.refused(f"{A}-0")
        await until(lambda: NODE_LOCK not in rig.annotations("nodes", NODE))
        assert rig.annotations("pods", "train")["hami.io/bind-phase"] == "failed"


async def test_schedulers_from_2_8_read_the_register_as_json() -> None:
    async with running() as rig:
        await until(lambda: NODE_REGISTER in rig.annotations("nodes", NODE))
        annotations = rig.annotations("nodes", NODE)
        assert annotations[NODE_REGISTER] == JSON_REGISTER
        # One malformed or textual score makes HAMi drop the whole node.
        scores = json.loads(annotations[NODE_SCORE])
        assert [(row["uuid"], row["score"]) for row in scores] == [(A, {B: 100}), (B, {A: 100})]
        assert NODE_HANDSHAKE not in annotations


@pytest.mark.parametrize(
    ("scheduler", "register", "asks"),
    [
        (HamiScheduler.V2_4, TEXT_7, "Requesting_2030.01.01 00:00:05"),
        (HamiScheduler.V2_7, TEXT_9, "Requesting_2030-01-01 00:00:05"),
    ],
)
async def test_schedulers_up_to_2_7_read_text_and_have_their_question_answered(
    scheduler: HamiScheduler, register: str, asks: str
) -> None:
    clock = [datetime(2030, 1, 1, tzinfo=UTC)]
    async with running(scheduler=scheduler, now=lambda: clock[0]) as rig:
        await until(lambda: NODE_REGISTER in rig.annotations("nodes", NODE))
        annotations = rig.annotations("nodes", NODE)
        assert annotations[NODE_REGISTER] == register
        assert annotations[NODE_HANDSHAKE].startswith("Reported ")
        clock[0] += timedelta(seconds=40)
        rig.server.patch("nodes", NODE, {"metadata": {"annotations": {NODE_HANDSHAKE: asks}}})
        await until(lambda: rig.annotations("nodes", NODE)[NODE_HANDSHAKE].startswith("Reported "))
        assert rig.node_writes() == 2


async def test_a_2_9_scheduler_hears_of_every_change_and_is_not_answered_else() -> None:
    gpus = [Inventory(devices=PAIR)]
    async with running(gpus=gpus, scheduler=HamiScheduler.V2_9) as rig:
        await until(lambda: NODE_HANDSHAKE in rig.annotations("nodes", NODE))
        asked = {NODE_HANDSHAKE: "Requesting_2030-01-01 00:00:05"}
        rig.server.patch("nodes", NODE, {"metadata": {"annotations": asked}})
        gpus[0] = Inventory(devices=PAIR[:1])
        await until(lambda: rig.annotations("nodes", NODE)[NODE_HANDSHAKE].startswith("Reported "))
        assert rig.node_writes() == 2
        assert '"health":true' not in rig.annotations("nodes", NODE)[NODE_REGISTER].partition(B)[2]
