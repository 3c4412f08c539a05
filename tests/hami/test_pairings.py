"""HAMi's scheduler beside our daemon, and our extender beside HAMi's plugin."""

import pytest

from proto.annotations import keys
from tests.hami.cluster import HAMI_NAMESPACE, JsonObject, Lab, pod
from tests.hami.truth import wrong

pytestmark = [pytest.mark.hami, pytest.mark.needs_compiler, pytest.mark.timeout(600)]
BURST = 20
ONE = {"gpu": 1, "gpumem": 1000, "gpucores": 10}
APPS = [
    pod("whole", {"gpu": 1, "gpucores": 100}),
    pod("share", {"gpu": 1, "gpumem": 4000, "gpucores": 20}),
    pod("percent", {"gpu": 1, "gpumem-percentage": 50, "gpucores": 30}),
    pod("several", {"gpu": 2, "gpumem": 3000, "gpucores": 10}),
    pod("two-containers", ONE, {"gpu": 2, "gpumem": 1500, "gpucores": 5}),
    pod("second-container", {}, ONE),
    pod("first-container", ONE, {}),
    pod("first-and-last", ONE, {}, {"gpu": 1, "gpumem": 500, "gpucores": 5}),
]
SINCE_2_5 = [
    pod("topology", {"gpu": 4, "gpumem": 2000}, annotations={"hami.io/gpu-scheduler-policy": "topology-aware"})
]
INIT = [
    pod("init-and-app", ONE, init=({"gpu": 1, "gpumem": 2000, "gpucores": 10},)),
    pod("plain-init", ONE, init=({},)),
]


def shapes(lab: Lab) -> list[JsonObject]:
    """HAMi's releases before 2.8 do not know init containers, nor those before 2.5 topology."""
    release = lab.hami.release
    return APPS + (SINCE_2_5 if release >= (2, 5) else []) + (INIT if release >= (2, 8) else [])


async def every_shape_then_a_burst(lab: Lab) -> None:
    first, *others = shapes(lab)
    # HAMi's scheduler reads its nodes every few seconds: the first pod may wait for that.
    await lab.add(first)
    await lab.started(first["metadata"]["name"])
    for each in others:
        await lab.add(each)
    names = [each["metadata"]["name"] for each in (first, *others)]
    await lab.started(*names)
    assert await wrong(lab) == []
    await lab.remove(*names)
    burst = [f"burst-{number}" for number in range(BURST)]
    for name in burst:
        await lab.add(pod(name, {"gpu": 1, "gpumem": 2000, "gpucores": 10}))
    await lab.started(*burst)
    assert await wrong(lab) == []
    await lab.unlocked()


async def test_hamis_scheduler_and_our_daemon(lab: Lab) -> None:
    lab.install_hami()
    lab.shell("kubectl delete mutatingwebhookconfiguration hami-webhook")
    lab.install_ours(
        *("--set", "schedulerName=hami-scheduler"),
        *("--set", f"hamiCore.enabled=true,devicePlugin.settings.hami_handshake={lab.hami.handshake.value}"),
        *("--set", f"policies.trustedUsers={{system:serviceaccount:{HAMI_NAMESPACE}:hami-scheduler}}"),
    )
    lab.shell("kubectl -n topogpu-system scale deployment topogpu-scheduler --replicas=0")
    await lab.add_node("gpu-1", **{"nvidia.com/gpu.present": "true", "kubernetes.io/os": "linux"})
    await lab.follow()
    await lab.registered("gpu-1")
    assert (await lab.annotations("gpu-1"))[keys.NODE_ALLOCATION] == "immediate"
    await every_shape_then_a_burst(lab)


async def test_our_extender_and_hamis_plugin(lab: Lab) -> None:
    lab.install_hami()
    lab.shell("kubectl delete mutatingwebhookconfiguration hami-webhook")
    lab.shell("kubectl -n kube-system scale deployment hami-scheduler --replicas=0")
    lab.install_ours(
        *("--set", "schedulerName=hami-scheduler"),
        *("--set", f"policies.trustedUsers={{system:serviceaccount:{HAMI_NAMESPACE}:hami-device-plugin}}"),
    )
    await lab.add_node("gpu-1", gpu="on")
    await lab.follow()
    await lab.registered("gpu-1")
    await every_shape_then_a_burst(lab)
