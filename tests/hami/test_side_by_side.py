"""HAMi on some nodes and ours on others, each with its own scheduler."""

import pytest

from proto.annotations import keys
from tests.hami.cluster import HAMI_NAMESPACE, JsonObject, Lab, pod
from tests.hami.truth import wrong

pytestmark = [pytest.mark.hami, pytest.mark.needs_compiler, pytest.mark.timeout(600)]
BURST = 16
PART = {"gpu": 1, "gpumem": 20000, "gpucores": 50}
"""Two fill a GPU: the burst fills a node."""
OURS = {"nvidia.com/gpu.present": "true", "kubernetes.io/os": "linux"}


def theirs(name: str) -> JsonObject:
    """The label by which HAMi's webhook passes a pod over is one that our policies refuse to other schedulers' pods."""
    made = pod(name, PART)
    del made["metadata"]["labels"]
    return made


def ours(name: str) -> JsonObject:
    """Our extender knows the GPUs of HAMi's nodes too, so a selector keeps the pod from them."""
    made = theirs(name)
    made["spec"] |= {"schedulerName": "topogpu-scheduler", "nodeSelector": OURS}
    return made


async def test_each_scheduler_fills_its_own_nodes(lab: Lab) -> None:
    lab.install_hami("--set-string", "scheduler.nodeLabelSelector.gpu=on")
    lab.shell("kubectl delete mutatingwebhookconfiguration hami-webhook")
    users = [f"system:serviceaccount:{HAMI_NAMESPACE}:hami-{each}" for each in ("scheduler", "device-plugin")]
    lab.install_ours("--set", "hamiCore.enabled=true", "--set", f"policies.trustedUsers={{{','.join(users)}}}")
    await lab.add_node("theirs", gpu="on")
    await lab.add_node("ours", **OURS)
    await lab.follow()
    await lab.registered("theirs", "ours")
    await lab.add(theirs("theirs-0"))  # HAMi's scheduler reads its nodes every few seconds
    await lab.started("theirs-0")
    for number in range(BURST):
        if number:
            await lab.add(theirs(f"theirs-{number}"))
        await lab.add(ours(f"ours-{number}"))
    await lab.started(*(f"{whose}-{number}" for whose in ("theirs", "ours") for number in range(BURST)))
    where = {(name.partition("-")[0], each.spec.node_name) for name, each in (await lab.tenants()).items()}
    assert where == {("theirs", "theirs"), ("ours", "ours")}
    assert await wrong(lab) == []
    await lab.unlocked()
    found = await lab.annotations("ours")
    assert keys.NODE_HANDSHAKE not in found
    assert found[keys.NODE_ALLOCATION] == "slots"
