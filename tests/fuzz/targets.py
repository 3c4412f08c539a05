"""The decoders that read what others wrote, and what each must keep: an answer or its own error, and its laws."""

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from deviceplugin.container.cdi import UnreadableSpec, defined_edits, joined, with_devices
from deviceplugin.records.holdings import CheckpointUnreadable, decode_checkpoint
from deviceplugin.usage.shared_region import RegionError, parse_region, parse_switches, patches
from proto.admission import AdmissionError, decode_review
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_lock import decode_lock, encode_lock
from proto.annotations.node_register import decode_register, decode_scores, encode_register, encode_scores
from proto.annotations.pod_devices import decode_pod_devices, encode_pod_devices
from proto.extender import ExtenderError, decode_binding_args, decode_extender_args, decode_preemption_args
from proto.quantity import QuantityError, integer_quantity, parse_quantity
from simulation.machines.described import describe_reading
from simulation.machines.description import read_machine_description
from simulation.machines.nvidia_smi import SmiError, parse_topology
from simulation.machines.yaml_tree import MachineDescriptionError
from tests.deviceplugin.regions import V1_BYTES, Slot, v1

DATA = Path(__file__).parent.parent / "data"
MACHINES = Path(__file__).parent.parent.parent / "simulation" / "machines"
LONGEST_ERROR = 2_000
"""Characters of an error's text. What a stranger wrote must not fill logs, events and answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder. `read` raises only `errors`; `seeds` are inputs that it accepts."""

    read: Callable[[bytes], None]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Iterable[bytes]]


def corpus_file(name: str) -> Path:
    return DATA / "fuzz" / f"{name}.json"


def corpus(name: str) -> list[bytes]:
    """Returns inputs that reached new code in earlier searches, and those that broke the decoder once."""
    return [base64.b64decode(each) for each in json.loads(corpus_file(name).read_bytes())]


def run(target: Target, data: bytes) -> None:
    """Raises whatever the decoder must not raise, and AssertionError for a law that does not hold."""
    try:
        target.read(data)
    except target.errors as error:
        _refuse_long(error)


def _refuse_long(error: Exception) -> None:
    if len(str(error)) > LONGEST_ERROR:
        raise AssertionError(f"an error of {len(str(error))} characters")


def _text(data: bytes) -> str:
    """The API server passes on valid UTF-8 alone."""
    return data.decode("utf-8", errors="ignore")


def _register(data: bytes) -> None:
    devices = decode_register(_text(data))
    assert decode_register(encode_register(devices)) == devices


def _scores(data: bytes) -> None:
    scores = decode_scores(_text(data))
    assert decode_scores(encode_scores(scores, list(scores))) == scores


def _decision(data: bytes) -> None:
    shares = decode_pod_devices(DEVICES_ALLOCATED, _text(data))
    assert decode_pod_devices(DEVICES_ALLOCATED, encode_pod_devices(shares)) == shares


def _lock(data: bytes) -> None:
    lock = decode_lock(_text(data))
    again = decode_lock(encode_lock(lock))
    assert (again.namespace, again.pod) == (lock.namespace, lock.pod)
    assert abs((again.taken_at - lock.taken_at).total_seconds()) < 1


def _quantity(data: bytes) -> None:
    text = _text(data)
    value = parse_quantity(text)
    assert value.denominator > 1 or integer_quantity(text) == value


def _extender(data: bytes) -> None:
    for decode in (decode_extender_args, decode_preemption_args, decode_binding_args):
        try:
            decode(data)
        except ExtenderError as error:
            _refuse_long(error)


def _review(data: bytes) -> None:
    decode_review(data)


def _region(data: bytes) -> None:
    """The first byte is unused, the next 64 are its end, the others its beginning."""
    size = V1_BYTES if data else 0
    content = data[65:].ljust(size, b"\0")[: size - 64] + data[1:65].ljust(64, b"\0") if size else b""

    def read_at(offset: int, length: int) -> bytes:
        return content[offset : offset + length]

    parse_region(size, read_at)
    switches = parse_switches(size, read_at)
    assert list(patches(switches, switches)) == []


def _checkpoint(data: bytes) -> None:
    for holding in decode_checkpoint(data):
        assert isinstance(holding.cdi_devices, tuple)
        assert len(holding.ids) <= len(data)
        assert len(holding.mounts) <= len(data)


def _cdi(data: bytes) -> None:
    devices = list(defined_edits("fuzz.json", data).values())
    own = {"cdiVersion": "0.5.0", "kind": "a/b", "devices": [{"name": "c", "containerEdits": {}}]}
    assert joined([with_devices(own, devices)])["kind"] == "a/b"


def _topology(data: bytes) -> None:
    found = parse_topology(_text(data))
    assert found.gpus


def _machine(data: bytes) -> None:
    reading = describe_reading(read_machine_description(_text(data)))
    assert len(reading.gpus) <= 64


def _golden(key: str) -> Iterable[bytes]:
    nodes = msgspec.json.decode((DATA / "golden" / "0.1.0.json").read_bytes())["node"]
    yield from sorted({annotations[key].encode() for annotations in nodes.values() if key in annotations})


def _regions() -> Iterable[bytes]:
    gpus = ["GPU-a", "GPU-b"]
    slots = [Slot(memory={0: (1, 2, 3, 4, 10)}, sm={0: 20})]
    content = bytes(v1(gpus, slots))
    yield b"\0" + content[-64:] + content[:4_000]


TARGETS: dict[str, Target] = {
    "register": Target(read=_register, errors=(AnnotationError,), seeds=lambda: _golden(NODE_REGISTER)),
    "scores": Target(read=_scores, errors=(AnnotationError,), seeds=lambda: _golden(NODE_SCORE)),
    "decision": Target(
        read=_decision, errors=(AnnotationError,), seeds=lambda: [b";GPU-a,NVIDIA,1024,30:GPU-b,NVIDIA,0,0:;,,0,0:;"]
    ),
    "lock": Target(
        read=_lock, errors=(AnnotationError,), seeds=lambda: [b"2030-01-01T00:00:00Z,team,pod", b"2030-01-01T00:00:00Z"]
    ),
    "quantity": Target(
        read=_quantity, errors=(QuantityError,), seeds=lambda: [b"500m", b"4k", b"1.5Gi", b"1e3", b"-.5E-2"]
    ),
    "extender": Target(
        read=_extender,
        errors=(),
        seeds=lambda: [
            b'{"Pod":{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"name":"c"}]}},"NodeNames":["a","b"]}',
            b'{"pod":{"metadata":{"name":"p"}},"nodes":{"items":[{"metadata":{"name":"n"}}]},"nodenames":null}',
            b'{"PodName":"p","PodNamespace":"n","PodUID":"u","Node":"a"}',
            b'{"Pod":{"metadata":{"name":"p"}},"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u"}]}}}',
        ],
    ),
    "review": Target(
        read=_review,
        errors=(AdmissionError,),
        seeds=lambda: [
            b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"kind":"Pod"},'
            b'"namespace":"n","operation":"CREATE","object":{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c",'
            b'"env":[{"name":"A","value":"b"}],"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}}}'
        ],
    ),
    "region": Target(read=_region, errors=(RegionError,), seeds=_regions),
    "checkpoint": Target(
        read=_checkpoint,
        errors=(CheckpointUnreadable,),
        seeds=lambda: [
            b'{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu",'
            b'"DeviceIDs":{"-1":["a"],"0":null},"AllocResp":"Cg=="}],"RegisteredDevices":{}},"Checksum":1}'
        ],
    ),
    "cdi": Target(
        read=_cdi,
        errors=(UnreadableSpec,),
        seeds=lambda: [
            b'{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"env":["A=b"],'
            b'"deviceNodes":[{"path":"/dev/nvidia0"}]}}],"containerEdits":{"mounts":[]}}',
            b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits: {}\n",
        ],
    ),
    "topology": Target(
        read=_topology,
        errors=(SmiError,),
        seeds=lambda: [path.read_bytes() for path in sorted((DATA / "topo").glob("0[12]*.txt"))],
    ),
    "machine": Target(
        read=_machine,
        errors=(MachineDescriptionError,),
        seeds=lambda: [path.read_bytes() for path in sorted(MACHINES.glob("*.yaml"))],
    ),
}
