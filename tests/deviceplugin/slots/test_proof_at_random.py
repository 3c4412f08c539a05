"""Every container gets its own, whatever happens in whatever order: kubelet's calls, deletions, crashes, lags, faults.

1 000 allocations; TOPOGPU_NIGHTLY=1 makes them 100 000. The seed in a failed test's name brings the same run again.
"""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from proto.devices import Device, PodShares
from proto.kubernetes.objects import Resources
from scheduler_ext.cluster.accounting import Footprint, effective
from scheduler_ext.requests import container_kinds
from simulation.hami_core import install_placeholder
from tests.deviceplugin.gpus import bound_pod, share
from tests.deviceplugin.slots.node_at_random import NodeAtRandom
from tests.deviceplugin.slots.one_thread import OneThread
from tests.deviceplugin.slots.pods_at_random import DEVICES, GPU, Bound

NIGHTLY = os.environ.get("TOPOGPU_NIGHTLY") == "1"
ALLOCATIONS = 25_000 if NIGHTLY else 500
SEEDS = range(4 if NIGHTLY else 2)
NAMES = 9
FAULTS = ("api", "checkpoint", "pod-resources", "folder", "disk", "ill")
PATIENCE = 20_000
"""Steps in which every pod must be served once nothing is broken any more."""


class Run:
    """What happens to the node, by one seed."""

    def __init__(self, node: NodeAtRandom) -> None:
        self.node = node
        self.random = node.random
        self.serial = 0

    async def go(self, allocations: int) -> None:
        while self.node.kubelet.allocations < allocations:
            drawn = self.random.random()
            if drawn < 0.06:
                self.bind()
            elif drawn < 0.14:
                self.touch()
            elif drawn < 0.15:
                await self.trouble()
            elif drawn < 0.20:
                self.node.loop.advance(self.random.choice((0.01, 0.3, 3.0, 70.0)))
            elif drawn < 0.205:
                self.node.daemon.process.live(self.node.daemon.allocator.specs.collect())
            else:
                self.node.loop.step()
            await self.settle()
        self.node.break_down(())
        await self.served()

    async def served(self) -> None:
        """Raises AssertionError when somebody is not."""
        for _ in range(PATIENCE):
            if not self.node.loop.step():
                self.node.loop.advance(0.5)
            await self.settle()
            if all(bound.ended or self.is_served(bound) for bound in self.node.api.pods.values()):
                return
        waiting = [bound for bound in self.node.api.pods.values() if not (bound.ended or self.is_served(bound))]
        raise AssertionError(f"not served: {waiting}")

    def is_served(self, bound: Bound) -> bool:
        return (
            bound.pod.status.phase == "Running"
            and bound.pod.metadata.deletion_timestamp is None
            and self.node.next_container(bound.pod) is None
        )

    async def settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    def bind(self) -> None:
        """A pod of any shape, if its name is free and the GPUs have room for it."""
        name = f"p{self.random.randrange(NAMES)}"
        if any(bound.pod.metadata.name == name for bound in self.node.api.pods.values()):
            return
        self.serial += 1
        bound = self.pod(name)
        held = [each for each in self.node.api.pods.values() if not each.ended] + [bound]
        if all(fits(*booked) for booked in zip(DEVICES, usage(held), strict=True)):
            self.node.api.put(bound.pod.metadata.uid, bound)

    def pod(self, name: str) -> Bound:
        random = self.random
        kinds = random.choice(("app", "app", "app", "app app", "init app", "init app", "init init app", "init app app"))
        kinds = random.choice((kinds, kinds, f"side {kinds}", kinds.replace("init", "init side", 1)))
        words = kinds.split()
        words.sort(key=lambda word: word == "app")
        order = random.sample(DEVICES, len(DEVICES))
        shares: PodShares = ()
        for _ in words:
            count = random.choice((0, 1, 1, 1, 1, 2, 2, 3, 4)) if len(words) > 1 else random.choice((1, 1, 1, 2, 4))
            gpus = order[:count] if random.random() < 0.5 else random.sample(DEVICES, count)
            memory = 10 * (self.serial % 300) + len(shares) + random.choice((100, 4000))
            cores = random.randrange(1, 12)
            shares += (tuple(share(gpu.uuid, memory + n, cores) for n, gpu in enumerate(gpus)),)
        pod = bound_pod(name, shares, init=len([word for word in words if word != "app"]))
        pod.metadata.uid = f"uid-{self.serial}"
        for container, word, held in zip(pod.all_containers, words, shares, strict=True):
            container.restart_policy = "Always" if word == "side" else ""
            container.resources = Resources(limits={GPU: str(len(held))} if held else {})
        return Bound(pod, shares)

    def touch(self) -> None:
        """Delete a pod, let it end, or restart one of its containers."""
        uids = sorted(self.node.api.pods)
        if not uids:
            return
        uid = self.random.choice(uids)
        pod = self.node.api.pods[uid].pod
        drawn = self.random.random()
        if drawn < 0.35:
            self.node.api.change(uid, deleted=True)
        elif drawn < 0.45 and self.is_served(self.node.api.pods[uid]):
            self.node.stop(uid)
            self.node.api.change(uid, phase="Succeeded")
        elif pod.status.phase == "Running":
            container = self.random.choice(pod.all_containers)
            self.node.live.pop((uid, container.name), None)
        self.node.kubelet.tell(uid)

    async def trouble(self) -> None:
        """Crashes pass; a fault stays until the next trouble, or longer."""
        faults = set() if self.random.random() < 0.8 else set(self.node.faults)
        drawn = self.random.choice(
            (*FAULTS, *FAULTS, "daemon", "daemon", "kubelet", "kubelet", "reboot", "", "", "", "")
        )
        match drawn:
            case "daemon":
                await self.node.crash_daemon()
            case "kubelet":
                await self.node.crash_kubelet()
            case "reboot":
                await self.node.reboot()
            case _:
                faults |= {drawn}
        self.node.break_down(faults)


def usage(pods: list[Bound]) -> list[Footprint]:
    """Of every GPU, booked as the extender does."""
    held = [effective(container_kinds(bound.pod), bound.shares) for bound in pods]
    return [sum((each.get(device.uuid, Footprint()) for each in held), Footprint()) for device in DEVICES]


def fits(device: Device, held: Footprint) -> bool:
    return held.replicas <= device.replicas and held.memory_mib <= device.memory_mib and held.cores <= device.cores


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is a place for it: every spec is brought to the disk twice over."""
    root = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    yield Path(root)
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_container_gets_what_was_decided_for_it_and_no_gpu_is_over_booked(
    seed: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="deviceplugin")
    loop = OneThread(Random(seed))
    try:
        loop.run_until_complete(run(loop, folder))
    finally:
        loop.close()


async def run(loop: OneThread, folder: Path) -> None:
    install_placeholder(folder / "hook")
    node = NodeAtRandom(loop, folder / "cdi")
    await Run(node).go(ALLOCATIONS)
    assert node.created > ALLOCATIONS // 2, "too few containers were started to prove anything"
    await loop.kill(node.kubelet.process)
    await loop.kill(node.daemon.process)
