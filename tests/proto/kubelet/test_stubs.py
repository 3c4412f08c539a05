"""The stubs speak kubelet's bytes: golden messages, service names, and one call over a unix socket."""

import tempfile
from pathlib import Path

import grpc
import pytest

from proto.kubelet import deviceplugin_v1beta1_pb2 as dp
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as dp_grpc
from proto.podresources import podresources_v1_pb2 as pr


def test_registration_bytes_are_those_of_the_go_plugin() -> None:
    request = dp.RegisterRequest(
        version="v1beta1",
        endpoint="g.sock",
        resource_name="r",
        options=dp.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True),
    )
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x06g.sock\x1a\x01r\x22\x04\x08\x01\x10\x01"


def test_an_allocate_answer_survives_the_wire() -> None:
    container = dp.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
        mounts=[dp.Mount(container_path="/c", host_path="/h", read_only=True)],
        devices=[dp.DeviceSpec(container_path="/dev/c", host_path="/dev/h", permissions="rw")],
        annotations={"k": "v"},
        cdi_devices=[dp.CDIDevice(name="topogpu.io/slot=1")],
    )
    answer = dp.AllocateResponse(container_responses=[container])
    assert dp.AllocateResponse.FromString(answer.SerializeToString()) == answer


def test_device_field_numbers() -> None:
    device = dp.Device(ID="a", health="Healthy", topology=dp.TopologyInfo(nodes=[dp.NUMANode(ID=1)]))
    assert device.SerializeToString() == b"\x0a\x01a\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"


def test_pod_resources_are_read_per_container() -> None:
    answer = pr.ListPodResourcesResponse(
        pod_resources=[
            pr.PodResources(
                name="p",
                namespace="ns",
                containers=[
                    pr.ContainerResources(
                        name="main",
                        devices=[pr.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-a-0"])],
                    )
                ],
            )
        ]
    )
    assert pr.ListPodResourcesResponse.FromString(answer.SerializeToString()) == answer


@pytest.mark.parametrize(
    ("file", "service"),
    [
        (dp, "v1beta1.Registration"),
        (dp, "v1beta1.DevicePlugin"),
        (pr, "v1.PodResourcesLister"),
    ],
)
def test_services_have_the_names_kubelet_dials(file: object, service: str) -> None:
    descriptor = getattr(file, "DESCRIPTOR")  # noqa: B009 - modules of two different types
    package, _, name = service.rpartition(".")
    assert descriptor.package == package
    assert name in descriptor.services_by_name


class Kubelet(dp_grpc.RegistrationServicer):
    def __init__(self) -> None:
        self.requests: list[dp.RegisterRequest] = []

    async def Register(self, request: dp.RegisterRequest, context: object) -> dp.Empty:  # noqa: N802 - the generated name
        self.requests.append(request)
        return dp.Empty()


async def test_a_registration_crosses_a_unix_socket() -> None:
    kubelet = Kubelet()
    server = grpc.aio.server()
    dp_grpc.add_RegistrationServicer_to_server(kubelet, server)
    with tempfile.TemporaryDirectory(prefix="tg", dir="/tmp") as folder:
        address = f"unix://{Path(folder, 'kubelet.sock')}"
        server.add_insecure_port(address)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                request = dp.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="nvidia.com/gpu")
                stub = dp_grpc.RegistrationStub(channel)
                await stub.Register(request, timeout=30)
        finally:
            await server.stop(None)
    assert kubelet.requests == [request]
