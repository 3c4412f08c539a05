"""The commands of docs/compatibility.md: from HAMi's chart to ours while pods run, and back."""

import asyncio
import re
from pathlib import Path

import pytest

from daemonset import render
from proto.annotations import keys
from tests.documented_commands import Shown, fences, shown_commands
from tests.hami.cluster import HAMI_NAMESPACE, Lab, pod
from tests.hami.truth import wrong

pytestmark = [pytest.mark.hami, pytest.mark.needs_compiler, pytest.mark.timeout(900)]
DOCUMENT = (render.HERE.parent / "docs/compatibility.md").read_text(encoding="utf-8")
SHAPES = {
    "whole": ({"gpu": 1, "gpucores": 100},),
    "share": ({"gpu": 1, "gpumem": 4000, "gpucores": 20},),
    "several": ({"gpu": 2, "gpumem": 3000, "gpucores": 10},),
    "two-containers": ({"gpu": 1, "gpumem": 1000}, {"gpu": 2, "gpumem": 1500}),
}


def steps(heading: str, place: int = 0) -> list[Shown]:
    """The commands of the block at this place below the heading."""
    (section,) = [text for text in re.split(r"^### ", DOCUMENT, flags=re.MULTILINE) if text.startswith(heading)]
    blocks = [
        list(shown_commands(f"```console\n{text}```")) for language, text in fences(section) if language == "console"
    ]
    return blocks[place]


class Administrator:
    """Types what the document shows, from a folder with migration.yaml; programs follow after each command."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self._values = folder / "migration.yaml"
        (text,) = [text for _, text in fences(DOCUMENT) if text.startswith("# migration.yaml")]
        self._values.write_text(text)

    async def types(self, *commands: Shown | str) -> None:
        for each in commands:
            command = each if isinstance(each, str) else each.command
            command = command.replace("--values migration.yaml", f"--values {self._values} --set webhook.enabled=false")
            await asyncio.to_thread(self.lab.shell, command)
            await self.lab.follow()


async def run(lab: Lab, suffix: str) -> list[str]:
    names = []
    for shape, containers in SHAPES.items():
        names.append(f"{shape}-{suffix}")
        await lab.add(pod(names[-1], *containers))
    await lab.started(*names)
    await lab.unlocked()
    assert await wrong(lab) == []
    return names


async def restart_containers(lab: Lab, node: str) -> None:
    """Each gets what it had; `wrong` compares."""
    for one in (await lab.tenants()).values():
        if one.spec.node_name == node:
            for container in one.spec.containers:
                await lab.nodes[node].kubelet.restart_container(one.metadata.uid, container.name)
    assert await wrong(lab) == []


async def test_there_and_back(lab: Lab, tmp_path: Path) -> None:
    administrator = Administrator(lab, tmp_path)
    lab.install_hami()
    for name in ("gpu-1", "gpu-2"):
        await lab.add_node(name, gpu="on")
    await lab.follow()
    await lab.registered("gpu-1", "gpu-2")
    await run(lab, "under-hami")

    await administrator.types(*steps("1. The scheduler"))
    await run(lab, "after-the-scheduler")

    await administrator.types(*steps("2. The nodes"))
    await lab.until(lambda: by_slots(lab, "gpu-1"))
    # The daemon registers with kubelet and writes the totals by other steps than the annotation.
    await lab.until(lambda: is_well(lab, "gpu-1"))
    await restart_containers(lab, "gpu-1")
    await lab.remove(*(name for name in await lab.tenants() if name.startswith("whole")))
    await run(lab, "after-a-node")
    await restart_containers(lab, "gpu-1")

    await administrator.types(*steps("2. The nodes", 1))
    await lab.registered("gpu-1", "gpu-2")
    assert not await by_slots(lab, "gpu-1")
    await run(lab, "after-the-node-is-back")

    await administrator.types(
        "helm uninstall topogpu --namespace topogpu-system",
        f"helm -n kube-system upgrade hami {lab.hami.chart} --no-hooks",
    )
    await run(lab, "under-hami-again")


async def by_slots(lab: Lab, node: str) -> bool:
    return (await lab.annotations(node)).get(keys.NODE_ALLOCATION) == "slots"


async def is_well(lab: Lab, node: str) -> bool:
    return "✗" not in await asyncio.to_thread(lab.ask, node, "doctor")


WHOLE_GPUS, OF = 12, 8


@pytest.mark.parametrize("way", ["from HAMi to us", "from us to HAMi"])
async def test_schedulers_killed_in_a_burst_share_no_gpu(lab: Lab, way: str, tmp_path: Path) -> None:
    """Twelve pods want a whole GPU each of eight; HAMi's plugin is on the node."""
    administrator = Administrator(lab, tmp_path)
    lab.install_hami()
    lab.shell("kubectl delete mutatingwebhookconfiguration hami-webhook")
    # Both schedulers may write, so that nothing but the lock and the annotations keeps them apart.
    accounts = ",".join(
        f"system:serviceaccount:{HAMI_NAMESPACE}:{name}" for name in ("hami-scheduler", "hami-device-plugin")
    )
    lab.install_ours("--set", "schedulerName=hami-scheduler", "--set", f"policies.trustedUsers={{{accounts}}}")
    await lab.add_node("gpu-1", gpu="on")
    schedulers = [("kube-system", "hami-scheduler"), ("topogpu-system", "topogpu-scheduler")]
    (first_namespace, first), (second_namespace, second) = schedulers if way == "from HAMi to us" else schedulers[::-1]
    await administrator.types(
        f"kubectl -n {second_namespace} scale deployment {second} --replicas=0",
        f"kubectl -n {first_namespace} scale deployment {first} --replicas=1",
    )
    await lab.registered("gpu-1")
    await lab.add(pod("warm", {"gpu": 1, "gpumem": 1000}))
    await lab.started("warm")
    await lab.remove("warm")
    names = [f"whole-{number}" for number in range(WHOLE_GPUS)]
    for name in names:
        await lab.add(pod(name, {"gpu": 1, "gpucores": 100}))

    async def at_least(count: int) -> bool:
        return list((await lab.phases()).values()).count("Running") >= count

    await lab.until(lambda: at_least(3))
    await lab.kill(first)
    await asyncio.to_thread(lab.shell, f"kubectl -n {first_namespace} scale deployment {first} --replicas=0")
    await administrator.types(f"kubectl -n {second_namespace} scale deployment {second} --replicas=1")
    await lab.until(lambda: at_least(OF))
    await lab.unlocked()
    phases = list((await lab.phases()).values())
    assert (phases.count("Running"), phases.count("Pending")) == (OF, WHOLE_GPUS - OF), phases
    assert await wrong(lab) == []
