"""One node as a model: API server, kubelet, runtime and CDI folder, around the daemon's real slot allocator."""

from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from deviceplugin.container.cdi import SLOT_KIND, cdi_spec
from deviceplugin.container.edits import AllocationSettings, ContainerFacts, HamiCore, container_edits
from deviceplugin.container.hami_core import find_hami_core
from deviceplugin.slots.slot import SPEC_FILE, applied
from proto.devices import ContainerShares, DeviceShare, DeviceUUID
from proto.kubernetes.objects import Container, Pod
from tests.deviceplugin.slots.daemon_at_random import Daemon
from tests.deviceplugin.slots.kubelet_at_random import Kubelet
from tests.deviceplugin.slots.one_thread import OneThread
from tests.deviceplugin.slots.pods_at_random import BY_UUID, DEVICES, Api, Bound, Entry


class NodeAtRandom:
    """`faults` names what is broken at the moment: `api`, `checkpoint`, `pod-resources`, `folder` (for CDI), `disk`, or
    that a GPU is `ill`. `live` is what the specs gave to every container that runs.
    """

    def __init__(self, loop: OneThread, cdi: Path) -> None:
        self.loop = loop
        self.random = loop.random
        self.cdi = cdi
        self.api = Api()
        self.faults: set[str] = set()
        self.live: dict[tuple[str, str], ContainerShares] = {}
        self.over: set[tuple[str, str]] = set()
        """Init containers that have ended."""
        self.created = 0
        self._read: deque[Any] = deque(maxlen=4)
        self.refused = 0
        self.kubelet = Kubelet(self)
        self.kubelet.start()
        self.daemon = Daemon(self)

    async def api_answers(self) -> None:
        await self.loop.turn()
        while "api" in self.faults:
            await self.loop.turn()

    def next_container(self, pod: Pod) -> Container | None:
        """The first that has to be started, or to end."""
        uid = pod.metadata.uid
        for container in pod.spec.init_containers:
            running = (uid, container.name) in self.live
            if (uid, container.name) not in self.over if not container.is_sidecar else not running:
                return container
        return next((each for each in pod.spec.containers if (uid, each.name) not in self.live), None)

    def create(self, bound: Bound, container: Container, entry: Entry | None) -> bool:
        """As a runtime does, by any of the last specs that it has read; False when the device has none. Raises
        AssertionError for the wrong spec.
        """
        shares: ContainerShares = ()
        if entry is not None:
            spec = self._spec(entry)
            if spec is None:
                return False
            assert spec == _decided_spec(bound, container.name, entry, self.cdi.parent), (bound, container.name, entry)
            shares = _given(spec)
        self.live[bound.pod.metadata.uid, container.name] = shares
        self.created += bool(shares)
        self.check_capacity()
        return True

    def check_capacity(self) -> None:
        for device in DEVICES:
            held = [share for shares in self.live.values() for share in shares if share.uuid == device.uuid]
            taken = (len(held), sum(share.memory_mib for share in held), sum(share.cores for share in held))
            within = (device.replicas, device.memory_mib, device.cores)
            assert all(mine <= its for mine, its in zip(taken, within, strict=True)), (device.uuid, taken, self.live)

    def end(self, uid: str, container: str) -> None:
        del self.live[uid, container]
        self.over.add((uid, container))

    def stop(self, uid: str) -> None:
        self.live = {key: shares for key, shares in self.live.items() if key[0] != uid}

    async def crash_daemon(self) -> None:
        await self.loop.kill(self.daemon.process)
        self.daemon = Daemon(self)

    async def crash_kubelet(self) -> None:
        await self.loop.kill(self.kubelet.process)
        self.kubelet.start()

    async def reboot(self) -> None:
        """The CDI folder is in memory."""
        await self.loop.kill(self.daemon.process)
        await self.loop.kill(self.kubelet.process)
        self.live, self.over = {}, set()
        for spec in self.cdi.glob("*.json"):
            spec.unlink()
        self.kubelet.start()
        self.daemon = Daemon(self)

    def break_down(self, faults: Collection[str]) -> None:
        """From now on these and no others are the case."""
        self.faults = set(faults)
        self.loop.disk.hangs = "disk" in faults
        self._set_folder(writable="folder" not in faults)
        self.daemon.set_ill([DEVICES[0].uuid] if "ill" in faults else [])

    def _spec(self, entry: Entry) -> Any:
        """Its cache lags behind the folder: what it says of a slot is any of the last things that stood there."""
        try:
            self._read.append(msgspec.json.decode((self.cdi / SPEC_FILE).read_bytes()))
        except OSError:
            self._read.append({"devices": []})
        spec = self.random.choice(self._read) if self.random.random() < 0.3 else self._read[-1]
        devices = [device for device in spec["devices"] if device["name"] == entry.slot]
        return {**spec, "devices": devices} if devices else None

    def _set_folder(self, *, writable: bool) -> None:
        aside = self.cdi.with_name("aside")
        if not writable and not aside.exists():
            self.cdi.mkdir(exist_ok=True)
            self.cdi.rename(aside)
            self.cdi.write_text("in the way")
        elif writable and aside.exists():
            self.cdi.unlink()
            aside.rename(self.cdi)


def _decided_spec(bound: Bound, container: str, entry: Entry, folder: Path) -> Mapping[str, object]:
    """From the pod alone, with the HAMi-core that lies in the folder."""
    pod = bound.pod
    names = [each.name for each in pod.all_containers]
    shares = bound.shares[names.index(container)]
    facts = ContainerFacts(pod_uid=pod.metadata.uid, name=container)
    hami_core = find_hami_core(str(folder / "hook"))
    assert isinstance(hami_core, HamiCore)
    edits = container_edits(shares, BY_UUID, facts, AllocationSettings(), hami_core)
    return cdi_spec(SLOT_KIND, entry.slot, applied(edits))


def _given(spec: Mapping[str, Any]) -> ContainerShares:
    """What a spec lets its container use."""
    (device,) = spec["devices"]
    env = dict(variable.split("=", 1) for variable in device["containerEdits"]["env"])
    return tuple(
        DeviceShare(
            uuid=DeviceUUID(uuid),
            memory_mib=int(env[f"CUDA_DEVICE_MEMORY_LIMIT_{n}"].removesuffix("m")),
            cores=int(env[f"CUDA_DEVICE_SM_LIMIT_{n}"]),
        )
        for n, uuid in enumerate(env["NVIDIA_VISIBLE_DEVICES"].split(","))
    )
