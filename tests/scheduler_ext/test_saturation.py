"""Many clients at once on nodes without room: whatever they ask in whatever order, no GPU is given out twice.

What was given out is counted from the API server's objects, by `tests.scheduler_ext.recount`.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from proto.annotations import keys
from simulation.apiserver import Fault
from tests.scheduler_ext.recount import NONE, Amount, allocated, holds, recount
from tests.scheduler_ext.rig import Rig, eventually, node_json, running

NIGHTLY = bool(os.environ.get("TOPOGPU_NIGHTLY"))
REQUESTS = 10_000 if NIGHTLY else 3_000
CLIENTS = 32
BATCH = 500
GPUS, SLOTS, MEMORY_MIB, CORES = 8, 4, 40960, 100
NODES = ("a", "b", "c")

Pod = dict[str, Any]


@dataclass
class Crowd:
    """Clients that know nothing of each other, and the pods they have been told of."""

    rig: Rig
    random: Random
    requests: int = 0
    filtered: list[tuple[Pod, str]] = field(default_factory=list)
    """Pods with the node they were promised, not bound so far."""
    bound: list[tuple[Pod, str]] = field(default_factory=list)
    """Whose bind was answered without an error."""
    binds: Counter[str] = field(default_factory=Counter)
    """How often each pod was to be bound, by name."""
    made: int = 0

    async def batch(self, size: int) -> None:
        until = self.requests + size

        async def client() -> None:
            while self.requests < until:
                await self.step()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    async def step(self) -> None:
        steps = (self.arrive, self.arrive_and_bind, self.bind_late, self.bind_elsewhere, self.bind_twice,
                 self.filter_again, self.end, self.recreate)  # fmt: skip
        (chosen,) = self.random.choices(steps, weights=(20, 30, 15, 5, 5, 10, 25, 3))
        await chosen()

    async def arrive(self) -> tuple[Pod, str] | None:
        pod = self.rig.server.create(random_pod(self.random, f"p{self.made}"))
        self.made += 1
        node = await self.filter(pod)
        if node is None:
            self.remove(pod)
            return None
        self.filtered.append((pod, node))
        return pod, node

    async def arrive_and_bind(self) -> None:
        promised = await self.arrive()
        if promised is not None and promised in self.filtered:
            self.filtered.remove(promised)
            await self.bind(*promised)

    async def bind_late(self) -> None:
        if self.filtered:
            await self.bind(*self.filtered.pop(self.random.randrange(len(self.filtered))))

    async def bind_elsewhere(self) -> None:
        if self.filtered:
            pod, _ = self.filtered.pop(self.random.randrange(len(self.filtered)))
            await self.bind(pod, self.random.choice(NODES))

    async def bind_twice(self) -> None:
        """At the same time, to the same node or to two; or once more after it was bound."""
        if self.filtered:
            pod, node = self.filtered.pop(self.random.randrange(len(self.filtered)))
            await asyncio.gather(self.bind(pod, node), self.bind(pod, self.random.choice([node, *NODES])))
        if self.bound:
            await self.bind(*self.random.choice(self.bound[-CLIENTS:]))

    async def filter_again(self) -> None:
        """Pods that wait, and pods that have a node by now, as after a restart of kube-scheduler."""
        known = [*self.filtered, *self.bound[-CLIENTS:]]
        if known:
            pod, _ = self.random.choice(known)
            node = await self.filter(pod)
            if node is not None and self.random.random() < 0.5:
                await self.bind(pod, node)

    async def end(self) -> None:
        """Pods finish, or are deleted at once or with a grace, so that there is room for others."""
        for pod, _ in self.bound[: 2 + len(self.bound) // 50]:
            match self.random.randrange(4):
                case 0:
                    self.patch(pod, {"status": {"phase": "Succeeded"}}, "status")
                case 1:
                    await self.stop(pod)
                case _:
                    self.remove(pod)
        del self.bound[: 2 + len(self.bound) // 50]
        await asyncio.sleep(0)

    async def recreate(self) -> None:
        """A namesake takes the place of a pod that is about to be bound."""
        if self.filtered:
            pod, node = self.filtered.pop()
            self.remove(pod)
            self.rig.server.create(random_pod(self.random, pod["metadata"]["name"]))
            await self.bind(pod, node)
            self.remove(pod)

    async def filter(self, pod: Pod) -> str | None:
        self.requests += 1
        names = self.random.sample(NODES, self.random.randint(1, len(NODES)))
        answer = await self.rig.filter(pod, *names)
        return answer["NodeNames"][0] if answer["NodeNames"] else None

    async def bind(self, pod: Pod, node: str) -> None:
        self.requests += 1
        self.binds[pod["metadata"]["name"]] += 1
        if not await self.rig.bind(pod, node):
            self.bound.append((pod, node))

    async def stop(self, pod: Pod) -> None:
        """Deletes it with a grace of a second: so long it still holds its GPUs."""
        url = f"{self.rig.server.url}/api/v1/namespaces/default/pods/{pod['metadata']['name']}?gracePeriodSeconds=1"
        async with self.rig.http.delete(url) as response:
            await response.read()

    def patch(self, pod: Pod, body: dict[str, Any], subresource: str) -> None:
        name = pod["metadata"]["name"]
        if self.rig.server.store.get("pods", "default", name):
            self.rig.server.patch("pods", name, body, namespace="default", subresource=subresource)

    def remove(self, pod: Pod) -> None:
        name = pod["metadata"]["name"]
        if self.rig.server.store.get("pods", "default", name):
            self.rig.server.delete("pods", name, namespace="default")


def random_pod(random: Random, name: str) -> Pod:
    """Shares and whole GPUs, one or several, in one or several containers of every kind."""
    few = {"initContainers": [], "containers": [random_container(random, "main")]}
    if random.random() < 0.3:
        few["containers"].append(random_container(random, "second"))
    if random.random() < 0.3:
        few["initContainers"].append(random_container(random, "first"))
    if random.random() < 0.2:
        few["initContainers"].append(random_container(random, "beside") | {"restartPolicy": "Always"})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "topogpu-scheduler", **few},
    }


def random_container(random: Random, name: str) -> dict[str, Any]:
    limits = {keys.RESOURCE_COUNT: str(random.choice((1, 1, 1, 2, 4)))}
    if random.random() < 0.8:
        limits[keys.RESOURCE_MEMORY] = str(random.choice((1000, 7000, 10240, 20480, 30000)))
    if random.random() < 0.5:
        limits[keys.RESOURCE_CORES] = str(random.choice((10, 30, 50, 100)))
    return {"name": name, "image": "work", "resources": {"limits": limits}}


@dataclass
class Witness:
    """Goes through every write of the API server and writes down what must not be."""

    rig: Rig
    version: int
    held: dict[str, Amount] = field(default_factory=dict)
    bound: Counter[str] = field(default_factory=Counter)
    """How often each pod was given a node, by UID."""
    wrong: list[str] = field(default_factory=list)

    def look(self) -> list[str]:
        for change in self.rig.server.store.changes_after("pods", self.version):
            self.version = change.version
            self._count(change.before, -1)
            self._count(change.after, 1)
            after = change.after
            if after and after["spec"].get("nodeName") and not (change.before or {"spec": {}})["spec"].get("nodeName"):
                self._bound(after)
        return self.wrong

    def _bound(self, pod: Pod) -> None:
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        self.bound[uid] += 1
        asked = sum(int(one["resources"]["limits"][keys.RESOURCE_COUNT]) for one in containers(pod))
        given = [uuid for container in allocated(pod) for uuid in container]
        if self.bound[uid] > 1 or len(given) != asked or not all(uuid.startswith(f"GPU-{node}-") for uuid in given):
            self.wrong.append(f"{pod['metadata']['name']} on {node}: {given}, bound {self.bound[uid]} times")

    def _count(self, pod: Pod | None, sign: int) -> None:
        for uuid, amount in recount([pod] if pod and holds(pod) else []).items():
            known = self.held.get(uuid, NONE)
            slots, memory_mib, cores = (there + sign * more for there, more in zip(known, amount, strict=True))
            self.held[uuid] = (slots, memory_mib, cores)
            if sign > 0 and (slots > SLOTS or memory_mib > MEMORY_MIB or cores > CORES):
                self.wrong.append(f"{uuid}: {self.held[uuid]} given out")


def containers(pod: Pod) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@asynccontextmanager
async def crowded(seed: int, **changes: Any) -> AsyncIterator[Crowd]:
    nodes = [node_json(name, gpus=GPUS, slots=SLOTS, memory_mib=MEMORY_MIB) for name in NODES]
    async with running(*nodes, **changes) as rig:
        yield Crowd(rig=rig, random=Random(seed))


async def can_be_filled_again(rig: Rig) -> bool:
    """Whether nothing is left held on any node, by a pod that asks for all of it."""
    whole = random_container(Random(0), "main") | {"resources": {"limits": {keys.RESOURCE_COUNT: str(GPUS)}}}
    for name in NODES:
        pod = random_pod(Random(0), f"all-of-{name}") | {"spec": {"containers": [whole]}}
        pod["metadata"]["uid"] = f"uid-all-of-{name}"
        if (await rig.filter(pod, name))["NodeNames"] != [name]:
            return False
    return True


def bindings_written(rig: Rig) -> Counter[str]:
    """Requests for a Binding, by pod."""
    return Counter(request.name for request in rig.server.requests if request.subresource == "binding")


async def test_a_crowd_is_never_given_more_than_there_is_and_leaves_nothing_behind() -> None:
    async with crowded(1, reservation_lease_seconds=0.5) as crowd:
        witness = Witness(rig=crowd.rig, version=crowd.rig.server.store.version)
        while crowd.requests < REQUESTS:
            await crowd.batch(BATCH)
            assert witness.look() == []
        written, bound = bindings_written(crowd.rig), len(witness.bound)
        assert bound > REQUESTS // 10
        assert all(written[name] <= asked for name, asked in crowd.binds.items())
        print(crowd.requests, bound, sum(written.values()), crowd.made, len(crowd.rig.server.requests))
