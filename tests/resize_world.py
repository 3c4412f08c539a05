"""One GPU, its daemon, two extenders, and users who change their minds: everything may stop or be late at any point.

The daemon's and the extender's steps are the product's own. Writes fly: they land later, or never, and only on the
version of the pod on which they were decided. Everybody sees what has landed in order, each as late as it likes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deviceplugin.resizing.step import PodLook, SetLimits, WriteAnswer, is_looked_at, next_step, served
from proto.annotations import keys
from proto.annotations.memory_resize import ResizeState, answer_in, encode_answer, wished
from proto.annotations.pod_devices import decode_pod_devices, encode_pod_devices
from proto.devices import Device, DeviceShare, DeviceUUID, PodShares
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.events import (
    Applied,
    GrowthBegan,
    GrowthSent,
    Listed,
    Removed,
    Wake,
    unperformed,
)
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.resize import resize_write
from tests.builders import container, node, pod

GPU = DeviceUUID("GPU-a")
HAS = 10
MIB = 1 << 20
DEVICE = Device(
    uuid=GPU, index=0, replicas=9, memory_mib=HAS, cores=100, type="NVIDIA A100", numa=0, mode="hami-core", healthy=True
)
NODE = node("n", [DEVICE], annotations={keys.NODE_ALLOCATION: "slots"})
Part = tuple[str, str]
"""Pod and container."""


@dataclass
class Write:
    """A patch on its way. `sender` hears what became of it, if it still lives."""

    pod: str
    version: str
    annotations: dict[str, str | None]
    sender: Any = None
    grows: bool = False


def shares_of(seen: Pod) -> PodShares:
    return decode_pod_devices(keys.DEVICES_ALLOCATED, seen.metadata.annotations[keys.DEVICES_ALLOCATED])


def names_of(seen: Pod) -> list[str]:
    return [each.name for each in seen.all_containers]


def wish_of(seen: Pod) -> str:
    return seen.metadata.annotations.get(keys.MEMORY_WISH, "")


class Api:
    """The objects, and everything that ever happened to them."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.log: list[tuple[str, Pod | None]] = []

    def write(self, name: str, annotations: dict[str, str | None], version: str = "") -> str:
        """The new version; empty if the pod has another one than `version` by now, or none."""
        before = self.pods.get(name)
        if before is None or (version and before.metadata.resource_version != version):
            return ""
        kept = {**before.metadata.annotations, **annotations}
        self._put(before, {key: value for key, value in kept.items() if value is not None})
        return self.pods[name].metadata.resource_version

    def bind(self, name: str, *memory_mib: int) -> None:
        shares = tuple((DeviceShare(uuid=GPU, memory_mib=mib, cores=0),) for mib in memory_mib)
        containers = [container(f"c{number}", gpu=1) for number in range(len(memory_mib))]
        made = pod(*containers, name=name, uid=name, node_name="n", phase="Running")
        self._put(made, {keys.DEVICES_ALLOCATED: encode_pod_devices(shares)})

    def delete(self, name: str) -> None:
        del self.pods[name]
        self.log.append((name, None))

    def _put(self, made: Pod, annotations: dict[str, str]) -> None:
        again = pod(
            *made.spec.containers,
            name=made.metadata.name,
            uid=made.metadata.uid,
            node_name="n",
            phase="Running",
            annotations=annotations,
        )
        again.metadata.resource_version = str(len(self.log) + 1)
        self.pods[made.metadata.name] = again
        self.log.append((made.metadata.name, again))


@dataclass
class Driver:
    """What outlives the daemon: the limits in force, what containers use, and the daemon's files."""

    limits: dict[Part, int] = field(default_factory=dict)
    used: dict[Part, int] = field(default_factory=dict)
    files: dict[Part, int] = field(default_factory=dict)

    def taken(self) -> int:
        return sum(max(limit, self.used.get(part, 0)) for part, limit in self.limits.items())


class Daemon:
    def __init__(self, api: Api, driver: Driver) -> None:
        self.api, self.driver = api, driver
        self.pods = dict(api.pods)
        self.seen = len(api.log)
        driver.limits |= {part: mib for part, mib in driver.files.items() if part in driver.limits}

    def watch(self) -> None:
        if self.seen < len(self.api.log):
            name, found = self.api.log[self.seen]
            self.seen += 1
            self.pods.pop(name, None)
            if found is not None:
                self.pods[name] = found

    def start(self, name: str, container: str) -> None:
        """Its container starts, also again."""
        seen = self.pods[name]
        answer = answer_in(seen.metadata.annotations)
        shares = served(answer, names_of(seen), shares_of(seen))
        part, held = (name, container), shares[names_of(seen).index(container)]
        self.driver.files[part] = self.driver.limits[part] = held[0].memory_mib
        self.driver.used[part] = 0

    def act(self, name: str, *, dies: bool = False) -> Write | None:
        """One step for the pod. It may die once the driver has its limits."""
        seen = self.pods[name]
        if not is_looked_at(seen.metadata.annotations):
            return None
        held = {each: self.driver.files[name, each] for each in names_of(seen) if (name, each) in self.driver.files}
        step = next_step(
            PodLook(
                wish=wish_of(seen),
                answer=answer_in(seen.metadata.annotations),
                containers=names_of(seen),
                shares=shares_of(seen),
                running=frozenset(held),
                expected=frozenset(held),
                held={each: {GPU: mib} for each, mib in held.items()},
                used_bytes={each: {GPU: self.driver.used.get((name, each), 0) * MIB} for each in held},
            )
        )
        if isinstance(step, SetLimits):
            part = name, step.container
            self.driver.limits[part] = step.limits_mib[GPU]
            if not dies:
                self.driver.files[part] = step.limits_mib[GPU]
        if isinstance(step, WriteAnswer):
            answer = None if step.answer is None else encode_answer(step.answer)
            return Write(name, seen.metadata.resource_version, {keys.MEMORY_RESIZE: answer})
        return None


class Extender:
    """It knows all that was written before it began."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.cluster = Cluster()
        self.seen = len(api.log)
        self.waits: set[str] = set()
        """Pods about which it has sent a write without an answer yet."""
        self._step(Listed(Node, [NODE]))
        self._step(Listed(Pod, list(api.pods.values())))

    def _step(self, event: Any) -> None:
        self.cluster.step(event, float(self.seen), unperformed(Wake))

    def watch(self) -> None:
        if self.seen < len(self.api.log):
            name, found = self.api.log[self.seen]
            before = next((each for at, each in reversed(self.api.log[: self.seen]) if at == name), None)
            self.seen += 1
            if found is not None:
                self._step(Applied(found))
            elif before is not None:
                self._step(Removed(before))

    def free(self) -> int:
        (gpu,) = self.cluster.ledger.snapshot().nodes["n"].gpus
        return HAS - gpu.memory_mib

    def act(self, name: str) -> Write | None:
        seen, ledger = self.cluster.wishes.every().get(name), self.cluster.ledger
        alone = ledger.alone("n", "default")
        if seen is None or alone is None or name in self.waits:
            return None
        write = resize_write(seen, self.cluster.requests.names, alone)
        if write is None:
            return None
        if write.counts is not None:
            self._step(GrowthBegan(seen, write.counts))
        self.waits.add(name)
        annotations: dict[str, str | None] = {}
        if write.answer is not None:
            annotations[keys.MEMORY_RESIZE] = encode_answer(write.answer)
        if write.holds is not None:
            annotations[keys.DEVICES_ALLOCATED] = encode_pod_devices(write.holds)
        return Write(name, seen.metadata.resource_version, annotations, self, write.counts is not None)

    def hears(self, write: Write, version: str) -> None:
        self.waits.discard(write.pod)
        if write.grows:
            self._step(GrowthSent(write.pod, int(version or 0)))


class World:
    """All of it. Only one of the extenders leads."""

    def __init__(self) -> None:
        self.api, self.driver = Api(), Driver()
        self.daemon: Daemon | None = Daemon(self.api, self.driver)
        self.leader = Extender(self.api)
        self.flying: list[Write] = []

    def send(self, write: Write | None) -> None:
        if write is not None:
            self.flying.append(write)

    def land(self, number: int) -> None:
        write = self.flying.pop(number)
        version = self.api.write(write.pod, write.annotations, write.version)
        if write.sender is self.leader:
            self.leader.hears(write, version)

    def give_up(self, number: int) -> None:
        """The sender gets no answer; it may still land."""
        write = self.flying[number]
        if write.sender is self.leader:
            self.leader.hears(write, "")
        write.sender = None

    def lose(self, number: int) -> None:
        self.give_up(number)
        self.flying.pop(number)

    def lead_anew(self) -> None:
        """Another extender leads, or the same one after a restart."""
        self.leader = Extender(self.api)

    def bind(self, name: str, *memory_mib: int) -> bool:
        """By the leader, if there is room as it sees it, and started by the daemon."""
        if self.daemon is None or sum(memory_mib) > self.leader.free():
            return False
        self.api.bind(name, *memory_mib)
        while self.leader.seen < len(self.api.log):
            self.leader.watch()
        while self.daemon.seen < len(self.api.log):
            self.daemon.watch()
        for each in names_of(self.api.pods[name]):
            self.daemon.start(name, each)
        return True

    def delete(self, name: str) -> None:
        self.api.delete(name)
        for table in (self.driver.limits, self.driver.used, self.driver.files):
            for part in [part for part in table if part[0] == name]:
                del table[part]

    def settle(self) -> None:
        """Everybody runs, everything lands, until nothing changes."""
        self.daemon = self.daemon or Daemon(self.api, self.driver)
        while self.flying:
            self.land(0)
        for _ in range(60):
            before = len(self.api.log), dict(self.driver.limits), dict(self.driver.files)
            while self.daemon.seen < len(self.api.log):
                self.daemon.watch()
            while self.leader.seen < len(self.api.log):
                self.leader.watch()
            for name in list(self.api.pods):
                self.send(self.daemon.act(name))
                self.send(self.leader.act(name))
            while self.flying:
                self.land(0)
            if before == (len(self.api.log), self.driver.limits, self.driver.files):
                return
        raise AssertionError("it never comes to rest")

    def over(self) -> Iterator[str]:
        """What must never be."""
        held = {
            (name, container): shares[0].memory_mib
            for name, found in self.api.pods.items()
            for container, shares in zip(names_of(found), shares_of(found), strict=True)
        }
        if sum(held.values()) > HAS or self.driver.taken() > HAS:
            yield f"the GPU has {HAS}, but is given out as {held}, by the driver as {self.driver}"
        for part, limit in self.driver.limits.items():
            if limit > held[part]:
                yield f"{part} holds {held[part]}, and the driver gives it up to {limit}"

    def wrong(self) -> Iterator[str]:
        """What is not right once everything has come to rest."""
        for name, found in self.api.pods.items():
            shares, containers, answer = shares_of(found), names_of(found), answer_in(found.metadata.annotations)
            holds = {each: held[0].memory_mib for each, held in zip(containers, shares, strict=True)}
            limits = {each: self.driver.limits[name, each] for each in containers}
            wish = wish_of(found)
            if not wish and answer is not None:
                yield f"{name} has an answer without a wish: {answer}"
            if wish and (answer is None or answer.wish != wish):
                yield f"{name} has no answer to {wish}: {answer}"
            if answer is not None and answer.state is ResizeState.SHRINKING:
                wanted = wished(wish, containers, shares)
                if not any(
                    self.driver.used.get((name, c), 0) > w[0].memory_mib
                    for c, w in zip(containers, wanted, strict=True)
                ):
                    yield f"{name} waits for memory that nothing uses: {answer}"
            elif limits != holds:
                yield f"{name} holds {holds}, and is limited to {limits}"
            elif answer is not None and answer.state not in (ResizeState.DONE, ResizeState.REFUSED):
                yield f"{name} never ends: {answer}"
            elif answer is not None and answer.state is ResizeState.DONE and wished(wish, containers, shares) != shares:
                yield f"{name} is done without what it wished: {answer}, {holds}"
