"""Slots over real sockets and processes, at random; the many orders of events are in test_identity_at_random.py."""

from collections.abc import Mapping
from random import Random

import pytest

from proto.devices import ContainerShares, PodShares
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import share
from tests.polling import until

pytestmark = pytest.mark.needs_compiler

ALLOCATIONS = 105
AT_ONCE = 12


class Load:
    """Pods that come and go, one container restarted now and then."""

    def __init__(self, node: DaemonRig, random: Random) -> None:
        self.node = node
        self.random = random
        self.gpus = [gpu.uuid for gpu in node.gpus()]
        self.live: dict[str, tuple[str, PodShares, int]] = {}
        self.serial = 0
        self.served = 0

    def allocations(self) -> int:
        return sum(call.startswith("Allocate") for call in self.node.kubelet.devices.calls)

    async def admitted(self) -> None:
        """Whoever is not when the plugin goes away is refused for good."""
        held = self.node.kubelet.devices.held
        await until(lambda: all(len(held(uid)) == len(shares) for uid, shares, _ in self.live.values()))

    async def go(self, allocations: int) -> None:
        while self.allocations() < allocations:
            while len(self.live) < AT_ONCE:
                self.bind()
            name = self.random.choice(list(self.live))
            if self.random.random() < 0.3:
                await self.node.kubelet.restart_container(self.live[name][0], await self.app_container(name))
            else:
                await self.end(name)

    def bind(self) -> None:
        """Init containers have the GPUs of whoever gets their ids."""
        self.serial += 1
        picked = self.random.sample(self.gpus, self.random.choice((1, 1, 1, 2, 3)))
        init = self.random.randrange(2)
        shares = tuple(
            tuple(share(gpu, 100 * n + self.serial, 1) for gpu in picked) for n in range(1 + init, 2 + 2 * init)
        )
        name = f"p{self.serial % 17}"
        if name not in self.live:
            self.live[name] = (self.node.bind_shares(name, shares, init=init), shares, init)

    async def app_container(self, name: str) -> str:
        await self.node.runs(name)
        return f"c{self.live[name][2]}"

    async def end(self, name: str) -> None:
        """With a look at what its containers got."""
        await self.node.runs(name)
        uid, shares, _ = self.live.pop(name)
        for created in self.node.kubelet.created[uid]:
            own = self.ordered(shares[int(created.name[1:])])
            assert given(created.env) == [(each.uuid, each.memory_mib) for each in own]
            self.served += 1
        self.node.server.delete("pods", name, namespace="default")
        await until(lambda: not self.node.kubelet.devices.held(uid))

    def ordered(self, shares: ContainerShares) -> ContainerShares:
        return tuple(sorted(shares, key=lambda each: self.gpus.index(each.uuid)))


def given(env: Mapping[str, str]) -> list[tuple[str, int]]:
    visible = env["NVIDIA_VISIBLE_DEVICES"].split(",")
    return [(uuid, int(env[f"CUDA_DEVICE_MEMORY_LIMIT_{n}"].removesuffix("m"))) for n, uuid in enumerate(visible)]


async def test_a_hundred_containers_get_their_own_over_restarts_of_daemon_and_kubelet() -> None:
    async with daemon("--limits", "driver,hami-core,unenforced", runtime_version="containerd://2.4.2") as node:
        load = Load(node, Random(7))
        await load.go(ALLOCATIONS // 3)
        await load.admitted()
        await node.kill()
        await node.start()
        await until(lambda: node.registrations() == 2)
        await node.ready()
        await load.go(2 * ALLOCATIONS // 3)
        await load.admitted()
        await node.kubelet.restart()
        await until(lambda: node.registrations() == 3)
        await node.ready()
        await load.go(ALLOCATIONS)
        for name in list(load.live):
            await load.end(name)
        assert load.served >= ALLOCATIONS
        assert (node.writes("nodes"), node.writes("pods")) == (1, 0)
