"""A ledger of one node `n`, and pods bound to it."""

from proto.annotations import keys
from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.objects import (
    Pod,
)
from scheduler_ext.cluster.ledger import Ledger
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device


def share(uuid: str, memory_mib: int = 1000, cores: int = 10) -> DeviceShare:
    return DeviceShare(uuid=DeviceUUID(uuid), memory_mib=memory_mib, cores=cores)


def bound(name: str, text: str, phase: str = "Running") -> Pod:
    return pod(container(gpu=1), name=name, node_name="n", phase=phase, annotations={keys.DEVICES_ALLOCATED: text})


def ledger(gpus: int = 2) -> Ledger:
    made = Ledger()
    made.replace_nodes([node("n", [device(number) for number in range(gpus)])])
    return made


def problem_of(made: Ledger, uid: str) -> str:
    record = made.records.bound(uid)
    return "" if record is None else record.problem


def used(made: Ledger, excluding: str = "") -> list[tuple[int, int, int]]:
    return [(gpu.replicas, gpu.memory_mib, gpu.cores) for gpu in made.snapshot(excluding).nodes["n"].gpus]
