"""HAMi's plugin makes MIG instances on demand where our extender decided, and never two in one place."""

import json
from typing import Any

import pytest

from proto.annotations import keys
from tests.hami.cluster import HAMI_NAMESPACE, Lab, pod

pytestmark = [pytest.mark.hami, pytest.mark.needs_compiler, pytest.mark.timeout(600)]
PACKED = {"hami.io/gpu-scheduler-policy": "binpack"}
SINCE = (2, 10)
"""Earlier releases call another program of NVIDIA's for it."""


async def test_mig_instances_on_demand(lab: Lab) -> None:
    if lab.hami.release < SINCE:
        pytest.skip(f"HAMi {lab.hami.version} makes MIG instances by a program that is not here")
    modes = {
        "name": "gpu-1",
        "operatingmode": "mig",
        "devicesplitcount": 10,
        "devicememoryscaling": 1,
        "migstrategy": "none",
    }
    lab.install_hami(
        "--set-json", f"devicePlugin.nodeConfiguration.config={json.dumps(json.dumps({'nodeconfig': [modes]}))}"
    )
    lab.shell("kubectl delete mutatingwebhookconfiguration hami-webhook")
    lab.shell("kubectl -n kube-system scale deployment hami-scheduler --replicas=0")
    trusted = f"policies.trustedUsers={{system:serviceaccount:{HAMI_NAMESPACE}:hami-device-plugin}}"
    lab.install_ours("--set", "schedulerName=hami-scheduler", "--set", trusted)
    await lab.add_node("gpu-1", gpu="on")
    await lab.follow()
    await lab.registered("gpu-1")
    small = [f"small-{number}" for number in range(8)]
    large = [f"large-{number}" for number in range(2)]
    for name in small:
        await lab.add(pod(name, {"gpu": 1, "gpumem": 4000}, annotations=PACKED))
    for name in large:
        await lab.add(pod(name, {"gpu": 1, "gpumem": 19000}, annotations=PACKED))
    await lab.started(*small, *large)
    assert await misplaced(lab) == []
    await lab.remove(*small[:2])
    again = ["again-0", "again-1"]
    for name in again:
        await lab.add(pod(name, {"gpu": 1, "gpumem": 4000}, annotations=PACKED))
    await lab.started(*again)
    assert await misplaced(lab) == []
    await lab.unlocked()


async def misplaced(lab: Lab) -> list[str]:
    """A sentence for every slice that two instances have, and for every container that sees another instance."""
    problems = []
    holders: dict[tuple[str, int], str] = {}
    for name, one in (await lab.tenants()).items():
        allocations: list[dict[str, Any]] = json.loads(one.metadata.annotations.get(keys.MIG_ALLOCATIONS, "[]"))
        (made,) = lab.nodes[one.spec.node_name].kubelet.created[one.metadata.uid]
        uuids = [each["migUUID"] for each in allocations]
        if not uuids or made.env["NVIDIA_VISIBLE_DEVICES"].split(",") != uuids:
            problems.append(f"{name}: the annotation names {uuids}, it sees {made.env['NVIDIA_VISIBLE_DEVICES']}")
        for each in allocations:
            start, size = each["placement"]["start"], each["placement"]["size"]
            for at in range(start, start + size):
                other = holders.setdefault((each["gpuUUID"], at), name)
                if other != name:
                    problems.append(f"{name} and {other} both have memory slice {at} of {each['gpuUUID']}")
    return problems
