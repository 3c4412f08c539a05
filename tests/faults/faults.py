"""The faults: each has a beginning, a time that it lasts, and an end."""

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from proto.podresources import podresources_v1_pb2 as wire
from simulation.apiserver import faults as api
from simulation.nvml.machine_file import CallHangs, lost_gpu
from tests.faults.steps import DAEMON, EXTENDER
from tests.faults.world import UUIDS, Need, World, set_clock

Act = Callable[[World], Awaitable[None]]
_WRITES = frozenset({"create", "patch", "update", "delete"})


async def nothing(_: World) -> None:
    """The end of a fault that ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`program` is the one whose start is meant. With `refuses` kubelet may refuse pods for good meanwhile, because it
    knows no plugin or reaches none; controllers create such pods again.
    """

    name: str
    begin: Act
    end: Act = nothing
    seconds: float = 0.0
    needs: frozenset[Need] = frozenset()
    program: str = DAEMON
    refuses: bool = False


def _injected(name: str, fault: api.Fault, *, seconds: float = 5.0, cut: bool = False) -> Fault:
    """The API server answers matching requests so. With `cut` its watches end at the beginning."""

    async def begin(it: World) -> None:
        it.server.inject(fault)
        if cut:
            it.server.compact()
            it.server.drop_watches()

    async def end(it: World) -> None:
        it.server.faults.remove(fault)

    return Fault(name=name, begin=begin, end=end, seconds=seconds)


def _away(seconds: float) -> Fault:
    return Fault(
        name=f"API server away {seconds:g} s",
        begin=lambda it: it.server.go_offline(),
        end=lambda it: it.server.go_online(),
        seconds=seconds,
    )


async def _silence(it: World) -> None:
    it.relay.silence()


async def _restore(it: World) -> None:
    it.relay.restore()


async def _pod_resources_gone(it: World) -> None:
    await it.kubelet.pod_resources.stop()


async def _pod_resources_back(it: World) -> None:
    await it.kubelet.pod_resources.start()


async def _list(it: World, *, answer: Callable[[wire.ListPodResourcesResponse], wire.ListPodResourcesResponse]) -> None:
    it.kubelet.pod_resources.listed = answer


def _of_another(told: wire.ListPodResourcesResponse) -> wire.ListPodResourcesResponse:
    """Every pod's containers are listed as the next one's; of a single pod as a pod's that does not exist."""
    pods = list(told.pod_resources)
    names = [(pod.namespace, pod.name) for pod in pods]
    names = [*names[1:], names[0]] if len(names) > 1 else [("default", "nobody")] * len(names)
    turned = [
        wire.PodResources(namespace=namespace, name=name, containers=pod.containers)
        for pod, (namespace, name) in zip(pods, names, strict=True)
    ]
    return wire.ListPodResourcesResponse(pod_resources=turned)


async def _fill(it: World) -> None:
    filled = it.disk / "filled"
    with filled.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


async def _empty(it: World) -> None:
    (it.disk / "filled").unlink()


async def _remount(it: World, *, how: str) -> None:
    words = ("mount", "-o", f"remount,bind,{how}", str(it.disk / "cdi"))
    await asyncio.to_thread(subprocess.run, words, check=True)


async def _driver_hangs(it: World) -> None:
    it.machine(*(CallHangs(gpu=gpu, call="*") for gpu in range(len(UUIDS))))


async def _gpu_lost(it: World) -> None:
    it.machine(lost_gpu(0))


async def _driver_works(it: World) -> None:
    it.machine()


async def _set_clock(it: World, *, seconds: int) -> None:
    set_clock(it.folder, seconds)


def _signalled(program: str, first: signal.Signals, last: signal.Signals | None, name: str, seconds: float) -> Fault:
    async def begin(it: World) -> None:
        it.signal(program, first)

    async def end(it: World) -> None:
        if last is not None:
            it.signal(program, last)

    refuses = program == DAEMON and first is signal.SIGKILL
    return Fault(name=name, begin=begin, end=end, seconds=seconds, program=program, refuses=refuses)


_WATCHES = frozenset({"watch"})
FAULTS = (
    _away(1),
    _away(60),
    _injected("409 to every write", api.Fault(verbs=_WRITES, status=409)),
    _injected("410 to every watch", api.Fault(verbs=_WATCHES, status=410), cut=True),
    _injected("429 to everything", api.Fault(status=429)),
    _injected("watch refused: 429", api.Fault(verbs=_WATCHES, status=429), cut=True),
    _injected("watch refused: 403", api.Fault(verbs=_WATCHES, status=403), cut=True),
    _injected("slow: 2 s for each answer", api.Fault(latency_seconds=2.0), seconds=10),
    Fault(name="half-open", begin=_silence, end=_restore, seconds=10, needs=frozenset({Need.RELAY})),
    Fault(name="kubelet's sockets made again", begin=lambda it: it.kubelet.restart(), refuses=True),
    Fault(
        name="kubelet dead",
        begin=lambda it: it.kubelet.go_down(),
        end=lambda it: it.kubelet.come_back(),
        seconds=5,
        refuses=True,
    ),
    Fault(name="pod-resources absent", begin=_pod_resources_gone, end=_pod_resources_back, seconds=5),
    Fault(
        name="pod-resources lists nothing",
        begin=partial(_list, answer=lambda _: wire.ListPodResourcesResponse()),
        end=partial(_list, answer=lambda told: told),
        seconds=5,
    ),
    Fault(
        name="pod-resources names other pods",
        begin=partial(_list, answer=_of_another),
        end=partial(_list, answer=lambda told: told),
        seconds=5,
    ),
    Fault(name="disk full", begin=_fill, end=_empty, seconds=5, needs=frozenset({Need.DISK})),
    Fault(
        name="CDI folder read-only",
        begin=partial(_remount, how="ro"),
        end=partial(_remount, how="rw"),
        seconds=5,
        needs=frozenset({Need.DISK}),
    ),
    Fault(name="NVML hangs", begin=_driver_hangs, end=_driver_works, seconds=12),
    Fault(name="GPU lost", begin=_gpu_lost, end=_driver_works, seconds=5),
    Fault(
        name="clock back 1 h",
        begin=partial(_set_clock, seconds=-3600),
        end=nothing,
        seconds=2,
        needs=frozenset({Need.CLOCK}),
    ),
    Fault(
        name="clock forward 1 h",
        begin=partial(_set_clock, seconds=3600),
        end=partial(_set_clock, seconds=0),
        seconds=2,
        needs=frozenset({Need.CLOCK}),
    ),
    _signalled(DAEMON, signal.SIGKILL, None, "SIGKILL of the daemon", 0),
    _signalled(EXTENDER, signal.SIGKILL, None, "SIGKILL of the extender", 0),
    _signalled(DAEMON, signal.SIGSTOP, signal.SIGCONT, "SIGSTOP of the daemon 30 s", 30),
    _signalled(EXTENDER, signal.SIGSTOP, signal.SIGCONT, "SIGSTOP of the extender 30 s", 30),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
