"""A node that offers less of a GPU than its running pods hold."""

from proto.devices import DeviceUUID
from tests.builders import as_json, node_json
from tests.deviceplugin.gpus import NODE, bound_pod, share
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running

GPU = DeviceUUID(f"GPU-{NODE}-0")


async def held(rig: Rig) -> list[float]:
    """Bytes and containers, as the extender counts them."""
    async with rig.http.get(rig.metrics_url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    series = ("hami_gpu_memory_allocated_bytes{", "hami_gpu_shared_count{")
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(series) and GPU in line]


async def test_pods_beyond_what_their_node_offers_stay_counted_and_nothing_is_given_out_until_they_have_ended() -> None:
    async with running(node_json(NODE)) as rig:
        pods = [bound_pod(name, ((share(GPU, 13000, 0),),), phase="Running") for name in ("p", "q")]
        for pod in pods:
            rig.server.create(as_json(pod))
        new = rig.add_pod("new", memory_mib=100)

        async def fits() -> bool:
            return bool((await rig.filter(new, NODE))["NodeNames"])

        async def is_refused() -> bool:
            return not await fits()

        await until(fits)
        smaller = node_json(NODE, replicas=2, memory_mib=20480)
        rig.server.patch("nodes", NODE, {"metadata": {"annotations": smaller["metadata"]["annotations"]}})
        await until(is_refused)
        assert await held(rig) == [26000 * 2**20, 2]
        rig.server.delete("pods", "p", namespace="default")
        await until(fits)
