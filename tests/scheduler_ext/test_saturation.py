"""Many clients at once on nodes without room: whatever they ask in whatever order, no GPU is given out twice.

What was given out is counted from the API server's objects, by `simulation.recount`.
The crowd asks 1 250 times, and 750 times before a failing API server; with TOPOGPU_NIGHTLY=1 far more often.
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
from simulation.recount import NONE, Amount, allocated, holds, recount
from tests.builders import node_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running

NIGHTLY = os.environ.get("TOPOGPU_NIGHTLY") == "1"
REQUESTS = 10_000 if NIGHTLY else 1_250
REQUESTS_AMID_FAULTS = 5_000 if NIGHTLY else 750
PATIENT_SECONDS = 60.0
CLIENTS = 32
BATCH = 250
GPUS, SLOTS, MEMORY_MIB, CORES = 8, 4, 40960, 100
NODES = ("a", "b", "c")

Pod = dict[str, Any]


@dataclass
class Crowd:
    """Clients that know nothing of each other, and the pods they have been told of."""

    rig: Rig
    random: Random
    requests: int = 0
    refused: int = 0
    """How often there was no room."""
    filtered: list[tuple[Pod, str]] = field(default_factory=list)
    """Pods with the node they were promised, not bound as far as the clients know."""
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
        steps = {
            self.arrive: 25,
            self.arrive_and_bind: 25,
            self.bind_late: 6,
            self.bind_elsewhere: 4,
            self.bind_twice: 4,
            self.filter_again: 8,
            self.end: 20,
            self.recreate: 2,
        }
        (chosen,) = self.random.choices([*steps], weights=[*steps.values()])
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
        """A pod finishes, or is deleted at once or with a grace, so that there is room for others."""
        known = self.bound or self.filtered
        if known:
            pod, _ = known.pop(self.random.randrange(len(known)))
            match self.random.randrange(4):
                case 0:
                    self.finish(pod)
                case 1:
                    await self.stop(pod)
                case _:
                    self.remove(pod)

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
        self.refused += not answer["NodeNames"] and not answer["Error"]
        return answer["NodeNames"][0] if answer["NodeNames"] else None

    async def bind(self, pod: Pod, node: str) -> None:
        self.requests += 1
        self.binds[pod["metadata"]["name"]] += 1
        if not await self.rig.bind(pod, node):
            self.bound.append((pod, node))
        elif self.is_there(pod):
            # It may be bound all the same, and it may hold what was to be bound: it is tried again, or goes.
            self.filtered.append((pod, node))

    def is_there(self, pod: Pod) -> bool:
        found = self.rig.server.store.get("pods", "default", pod["metadata"]["name"])
        return found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]

    async def stop(self, pod: Pod) -> None:
        """Deletes it with a grace of a second: so long it still holds its GPUs."""
        url = f"{self.rig.server.url}/api/v1/namespaces/default/pods/{pod['metadata']['name']}?gracePeriodSeconds=1"
        async with self.rig.http.delete(url) as response:
            await response.read()

    def finish(self, pod: Pod) -> None:
        name = pod["metadata"]["name"]
        if self.rig.server.store.get("pods", "default", name):
            body = {"status": {"phase": "Succeeded"}}
            self.rig.server.patch("pods", name, body, namespace="default", subresource="status")

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
    pods: list[Pod] = field(default_factory=list)
    """Those that were."""
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
        self.pods.append(pod)
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
    nodes = [node_json(name, gpus=GPUS, replicas=SLOTS, memory_mib=MEMORY_MIB) for name in NODES]
    async with running(*nodes, **changes) as rig:
        yield Crowd(rig=rig, random=Random(seed))


async def everything_is_free(rig: Rig) -> bool:
    """Whether every node has room for a pod that asks for all of it."""
    limits = {keys.RESOURCE_COUNT: str(GPUS), keys.RESOURCE_CORES: str(CORES)}
    for name in NODES:
        pod = random_pod(Random(0), f"all-of-{name}")
        pod["metadata"]["uid"] = f"uid-all-of-{name}"
        pod["spec"] = {"containers": [{"name": "main", "image": "work", "resources": {"limits": limits}}]}
        if (await rig.filter(pod, name))["NodeNames"] != [name]:
            return False
    return True


def bindings_sent(rig: Rig) -> Counter[str]:
    """By pod."""
    return Counter(request.name for request in rig.server.requests if request.subresource == "binding")


@pytest.mark.timeout(20 * PATIENT_SECONDS)
async def test_a_crowd_is_never_given_more_than_there_is_and_leaves_nothing_behind() -> None:
    """However busy the machine is, nothing is sent twice: nobody gives up on an answer."""
    async with crowded(1, reservation_lease_seconds=0.5, bind_deadline_seconds=PATIENT_SECONDS) as crowd:
        witness = Witness(rig=crowd.rig, version=crowd.rig.server.store.version)
        while crowd.requests < REQUESTS:
            await crowd.batch(BATCH)
            assert witness.look() == []
        assert min(len(witness.bound), crowd.refused) > REQUESTS // 20
        asked_once = {name for name, times in crowd.binds.items() if times == 1}
        sent = bindings_sent(crowd.rig)
        assert {sent[pod["metadata"]["name"]] for pod in witness.pods if pod["metadata"]["name"] in asked_once} == {1}
        assert all(sent[name] <= times for name, times in crowd.binds.items())
        for pod in crowd.rig.server.store.objects("pods"):
            crowd.remove(pod)
        await until(lambda: everything_is_free(crowd.rig))


async def test_nothing_is_given_out_twice_while_answers_and_watches_are_lost() -> None:
    async with crowded(2, reservation_lease_seconds=0.5, bind_deadline_seconds=0.5) as crowd:
        witness = Witness(rig=crowd.rig, version=crowd.rig.server.store.version)
        while crowd.requests < REQUESTS_AMID_FAULTS:
            lost = crowd.random.choice([
                Fault(subresource="binding", drop="after", times=3),
                Fault(subresource="binding", drop="before", times=3),
                Fault(subresource="binding", status=500, times=3),
                Fault(verbs=frozenset({"watch"}), status=410, times=1),
                Fault(verbs=frozenset({"watch"}), latency_seconds=0.1, times=2),
            ])  # fmt: skip
            crowd.rig.server.inject(lost)
            crowd.rig.server.drop_watches()
            await crowd.batch(BATCH // 5)
            assert witness.look() == []
        assert len(witness.bound) > REQUESTS_AMID_FAULTS // 25
