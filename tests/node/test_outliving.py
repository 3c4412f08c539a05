"""A pod that is deleted by force on a real node: its GPUs are taken until the runtime has ended its containers."""

import pytest

from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving
from tests.deviceplugin.gpus import share
from tests.node import image
from tests.node.pods import Pods, container, pod
from tests.node.real_node import NODE
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]


async def told(pods: Pods) -> Outliving | None:
    _, node = await pods.peer.send("GET", f"/api/v1/nodes/{NODE}")
    value = node["metadata"]["annotations"].get(NODE_OUTLIVING, "")
    return decode_outliving(value) if value else None


async def test_the_node_names_a_pod_that_was_deleted_by_force_until_its_containers_have_ended(pods: Pods) -> None:
    """A first process that handles no SIGTERM goes on until kubelet kills it, two seconds later at the earliest."""
    await pods.serve()
    uuid = pods.node.uuid(0)
    stubborn = pod("stubborn", container())
    stubborn["spec"]["terminationGracePeriodSeconds"] = 10
    stubborn["spec"]["containers"][0]["command"] = [image.PROGRAM, "stay"]
    await pods.add_bound(stubborn, ((share(uuid, 1000),),))
    await pods.add_bound(pod("stays", container()), ((share(pods.node.uuid(1), 1000),),))
    await pods.started("stubborn", "stays")
    uid = (await pods.get("stubborn"))["metadata"]["uid"]

    async def said() -> bool:
        return await told(pods) is not None

    await until(said)
    before = await told(pods)
    assert before is not None
    assert before.pods == {}
    status, _ = await pods.peer.send("DELETE", f"{pods.path}/stubborn?gracePeriodSeconds=0")
    assert status == 200

    async def named() -> bool:
        now = await told(pods)
        return now is not None and uid in now.pods

    await until(named)
    assert "stubborn" not in await pods.all()
    now = await told(pods)
    assert now is not None
    assert now.as_of > before.as_of
    assert now.pods == {uid: {uuid: (1, 1000, 30)}}

    async def ended() -> bool:
        now = await told(pods)
        return now is not None and now.pods == {}

    await until(ended)
