import pytest

from kubectl_topogpu.used import Readings, Used, joined, read_use
from proto.daemon_usage import ContainerUse, GpuUse, NodeUse, UsageUnreadable, encode_node_use
from proto.devices import DeviceUUID

GPU, OTHER = DeviceUUID("GPU-1"), DeviceUUID("GPU-of-another-node")
USE = encode_node_use(
    NodeUse(
        node="n",
        gpus={
            GPU: GpuUse(memory=3000, busy=80),
            DeviceUUID("GPU-2"): GpuUse(memory=-1),
            DeviceUUID("GPU-3"): GpuUse(memory=2**60),
            OTHER: GpuUse(memory=1),
        },
        containers=(
            ContainerUse(pod="ml/a", container="x", gpu=GPU, memory=1000, busy=12),
            ContainerUse(pod="ml/a", container="y", gpu=GPU, memory=1000),
            ContainerUse(pod="ml/b", container="x", gpu=OTHER, memory=1),
        ),
    )
)
OWN = {GPU, DeviceUUID("GPU-2"), DeviceUUID("GPU-3")}


def test_a_daemon_tells_what_pods_and_gpus_use_and_what_is_no_amount_is_not_known() -> None:
    assert read_use(USE, "n", OWN) == Readings(
        gpus={
            GPU: Used(memory_mib=3000, cores_percent=80),
            DeviceUUID("GPU-2"): Used(),
            DeviceUUID("GPU-3"): Used(),
        },
        pods={("ml/a", GPU): Used(memory_mib=2000, cores_percent=12)},
    )


def test_readings_of_several_nodes_are_joined() -> None:
    found = joined([read_use(USE, "n", OWN), Readings(missing={"n2": "refused"})])
    assert found.gpus[GPU].memory_mib == 3000
    assert found.missing == {"n2": "refused"}


@pytest.mark.parametrize("content", [USE.replace(b'"n"', b'"m"'), b"GPU 1", b'{"x":' + b"[" * 10**6])
def test_the_use_of_another_node_and_what_is_none_are_refused(content: bytes) -> None:
    with pytest.raises(UsageUnreadable):
        read_use(content, "n", OWN)
