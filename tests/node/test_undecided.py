"""What a real kubelet gives to pods past the scheduler, as the daemon tells it on the Node."""

from collections import Counter
from collections.abc import Mapping

import pytest

from deviceplugin.records.holdings import decode_checkpoint
from deviceplugin.replicas import split_replica
from proto.annotations.keys import NODE_UNDECIDED
from proto.annotations.undecided_pods import Given, decode_undecided
from tests.deviceplugin.gpus import share
from tests.node.pods import Pods, container, pod
from tests.node.real_node import NODE
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]


async def told(pods: Pods) -> Mapping[str, Given]:
    _, node = await pods.peer.send("GET", f"/api/v1/nodes/{NODE}")
    value = node["metadata"]["annotations"].get(NODE_UNDECIDED, "")
    return decode_undecided(value) if value else {}


async def test_the_node_names_the_gpus_of_a_pod_past_the_scheduler_until_it_is_gone(pods: Pods) -> None:
    await pods.serve()
    await pods.add_bound(pod("decided", container()), ((share(pods.node.uuid(0), 1000),),))
    await pods.started("decided")
    assert await told(pods) == {}
    past = pod("past", container("a", gpus=2), container("b"))
    await pods.add(past | {"spec": past["spec"] | {"nodeName": NODE}})
    uid = (await pods.get("past"))["metadata"]["uid"]

    async def named() -> bool:
        return uid in await told(pods)

    await until(named)
    checkpoint = decode_checkpoint((pods.node.root / "device-plugins" / "kubelet_internal_checkpoint").read_bytes())
    booked = Counter(split_replica(each)[0] for one in checkpoint if one.pod_uid == uid for each in one.ids)
    assert await told(pods) == {uid: booked}
    assert booked.total() == 3
    await pods.remove("past")

    async def silent() -> bool:
        return not await told(pods)

    await until(silent)
