"""What a container is created with."""

import json

import pytest

from proto.kubelet import deviceplugin_v1beta1_pb2 as wire
from proto.kubernetes.objects import Container, EnvVar
from simulation.kubelet.container import (
    CdiError,
    CreatedDeviceNode,
    CreatedMount,
    RuntimeManner,
    create_container,
    decode_cdi_spec,
)

SPEC = decode_cdi_spec(
    json.dumps(
        {
            "cdiVersion": "0.6.0",
            "kind": "topogpu.io/slot",
            "containerEdits": {"env": ["ALL=1"]},
            "devices": [
                {
                    "name": "s1",
                    "containerEdits": {
                        "env": ["LIMIT=10m"],
                        "deviceNodes": [{"path": "/dev/nvidia0"}],
                        "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"]}],
                    },
                }
            ],
        }
    ).encode()
)


def test_pod_environment_wins_over_the_plugins_answer() -> None:
    answer = wire.ContainerAllocateResponse(envs={"LIMIT": "5m", "OTHER": "x"})
    made = create_container(Container(name="c", env=[EnvVar(name="LIMIT", value="9m")]), "app", ["id"], [answer], [])
    assert dict(made.env) == {"LIMIT": "9m", "OTHER": "x"}


def test_a_cdi_device_brings_its_spec() -> None:
    answer = wire.ContainerAllocateResponse(cdi_devices=[wire.CDIDevice(name="topogpu.io/slot=s1")])
    made = create_container(Container(name="c"), "app", ["id"], [answer], [SPEC])
    assert dict(made.env) == {"ALL": "1", "LIMIT": "10m"}
    assert made.mounts == (CreatedMount("/c", "/h", True),)
    assert made.devices == (CreatedDeviceNode("/dev/nvidia0", "/dev/nvidia0", "rwm"),)


def test_a_cdi_device_without_spec_cannot_be_created() -> None:
    answer = wire.ContainerAllocateResponse(cdi_devices=[wire.CDIDevice(name="topogpu.io/slot=s2")])
    with pytest.raises(CdiError, match=r"topogpu\.io/slot=s2"):
        create_container(Container(name="c"), "app", ["id"], [answer], [SPEC])


def test_a_device_file_without_a_number_must_be_on_the_host() -> None:
    answer = wire.ContainerAllocateResponse(cdi_devices=[wire.CDIDevice(name="topogpu.io/slot=s1")])
    manner = RuntimeManner(has_file=lambda _: False)
    with pytest.raises(CdiError, match='failed to stat CDI host device "/dev/nvidia0": no such file or directory'):
        create_container(Container(name="c"), "app", ["id"], [answer], [SPEC], manner=manner)
