"""What kubelet makes of the totals that the daemon writes into its Node's status."""

import asyncio

import pytest

from deviceplugin.node.totals import PRIORITY_TOTAL
from deviceplugin.settings import TotalNames
from proto.annotations import keys
from proto.devices import DeviceShare
from tests.node.pods import JsonObject, Pods, container, node_is_ready, pod
from tests.node.real_node import NODE
from tests.node.test_restarts import running
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
MIB = 8 * 40960
WRITTEN = f"reported the totals of node {NODE}"
WHOLE = dict(zip(TotalNames(), (MIB, 800, 800, PRIORITY_TOTAL), strict=True))


async def told(pods: Pods, totals: dict[str, int]) -> None:
    """Capacity and allocatable of the Node are these."""

    async def so_much() -> bool:
        _, node = await pods.peer.send("GET", f"/api/v1/nodes/{NODE}")
        parts = [node["status"].get(part, {}) for part in ("capacity", "allocatable")]
        return all({name: _int(part.get(name, "0")) for name in totals} == totals for part in parts)

    await until(so_much)


def _int(amount: str) -> int:
    return int(amount.removesuffix("k")) * (1000 if amount.endswith("k") else 1)


async def restart_kubelet(pods: Pods) -> None:
    """Returns once it counts the GPUs again."""
    assert pods.node.daemon is not None
    registered = "registered nvidia.com/gpu with kubelet"
    times = pods.node.daemon.text().count(registered)
    await asyncio.to_thread(pods.node.stop_kubelet)
    await asyncio.to_thread(pods.node.start_kubelet)
    await pods.logged(registered, times=times + 1)
    await pods.offered(80)


async def test_kubelet_keeps_them_over_its_own_restarts(pods: Pods) -> None:
    await pods.serve()
    await told(pods, WHOLE)
    assert pods.node.daemon is not None
    written = pods.node.daemon.text().count(WRITTEN)
    for _ in range(2):
        await restart_kubelet(pods)
    await told(pods, WHOLE)
    assert pods.node.daemon.text().count(WRITTEN) == written


async def test_a_kubelet_that_forgot_its_devices_is_told_again(scheduled: Pods) -> None:
    await scheduled.serve()
    await told(scheduled, WHOLE)
    await asyncio.to_thread(scheduled.node.stop_daemon)
    await asyncio.to_thread(scheduled.node.stop_kubelet)
    for left in (scheduled.node.root / "device-plugins").iterdir():
        left.unlink()
    await asyncio.to_thread(scheduled.node.start_kubelet)
    await scheduled.serve()
    await told(scheduled, WHOLE)
    await scheduled.add(pod("after", container(gpumem=2000, gpucores=10, priority=1)))
    await scheduled.started("after")


async def test_a_node_that_was_deleted_has_them_again_once_kubelet_made_it(scheduled: Pods) -> None:
    await scheduled.serve()
    await told(scheduled, WHOLE)
    await asyncio.to_thread(scheduled.node.stop_kubelet)
    await scheduled.peer.send("DELETE", f"/api/v1/nodes/{NODE}")
    await asyncio.to_thread(scheduled.node.start_kubelet)
    await node_is_ready(scheduled.peer)
    await told(scheduled, WHOLE)
    await scheduled.offered(80)
    await scheduled.add(pod("after", container(gpumem=2000)))
    await scheduled.started("after")


async def test_init_containers_and_sidecars_may_name_memory_on_every_release(scheduled: Pods) -> None:
    await scheduled.serve()
    await told(scheduled, WHOLE)
    init = container("init", ends=True, gpumem=900, gpucores=5)
    sidecar = container("sidecar", gpumem=500) | {"restartPolicy": "Always"}
    await scheduled.add(pod("staged", container(gpumem=800), init=(init, sidecar)))
    await scheduled.started("staged")
    await scheduled.check("staged", "init", "sidecar", "main")


async def test_pods_run_on_through_a_restart_of_kubelet_although_a_gpu_is_gone_for_good(pods: Pods) -> None:
    """The daemon comes back with seven GPUs, the pods of the node ask for the memory of eight."""
    await pods.serve()
    await told(pods, WHOLE)
    names = [f"all-{gpu}" for gpu in range(8)]
    for gpu, name in enumerate(names):
        share = DeviceShare(uuid=pods.node.uuid(gpu), memory_mib=40960, cores=100)
        await pods.add_bound(pod(name, container(gpumem=40960, gpucores=100)), ((share,),))
    before = await pods.started(*names)
    await asyncio.to_thread(pods.node.stop_daemon)
    await pods.serve("--filter-devices", "7", replicas=70)
    await told(pods, WHOLE | {keys.RESOURCE_MEMORY_PERCENTAGE: 700})
    await asyncio.to_thread(pods.node.stop_kubelet)
    await asyncio.to_thread(pods.node.start_kubelet)
    await pods.logged("registered nvidia.com/gpu with kubelet", times=2)
    await pods.offered(70)
    for name in names:
        assert running(await pods.get(name)) == running(before[name])
    await pods.remove(*names)
    await told(pods, {keys.RESOURCE_MEMORY: 7 * 40960, keys.RESOURCE_CORES: 700})


def with_sums(made: JsonObject, memory_mib: int, cores: int) -> JsonObject:
    """The pod as the webhook writes it."""
    [main] = made["spec"]["containers"]
    sums = dict(zip(keys.SUMS, (str(memory_mib), str(cores)), strict=True))
    main["resources"]["limits"] |= sums
    return made


async def test_kubelet_keeps_sums_over_its_restart_and_they_follow_pods_that_have_none(pods: Pods) -> None:
    await pods.serve("--features", "gpu-sums")
    whole = {keys.RESOURCE_MEMORY_SUM: MIB, keys.RESOURCE_CORES_SUM: 800}
    await told(pods, whole)
    shares = [DeviceShare(uuid=pods.node.uuid(gpu), memory_mib=40960, cores=100) for gpu in range(8)]
    await pods.add_bound(
        with_sums(pod("summed", container(gpus=7, gpucores=100)), 7 * 40960, 700), (tuple(shares[:7]),)
    )
    await pods.add_bound(pod("past", container(gpucores=100)), (tuple(shares[7:]),))
    before = await pods.started("summed", "past")
    await told(pods, {keys.RESOURCE_MEMORY_SUM: 7 * 40960, keys.RESOURCE_CORES_SUM: 700})
    await restart_kubelet(pods)
    for name in ("summed", "past"):
        assert running(await pods.get(name)) == running(before[name])
    await pods.remove("past")
    await told(pods, whole)
