from typing import Any

import msgspec
import pytest

from deviceplugin.container.cdi import (
    UnreadableSpec,
    cdi_spec,
    defined_devices,
    joined,
    missing_sentence,
    spec_file_name,
)
from deviceplugin.container.edits import ContainerEdits, DeviceNode, Mount
from simulation.kubelet.container import CdiDeviceNode, CdiEdits, CdiMount, decode_cdi_spec, resolve_cdi
from tests.deviceplugin.gpus import A, B

KIND = "topogpu.io/slot"
EDITS = ContainerEdits(
    env={"NVIDIA_VISIBLE_DEVICES": A, "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"},
    mounts=(
        Mount(container_path="/etc/ld.so.preload", host_path="/usr/local/vgpu/ld.so.preload", read_only=True),
        Mount(container_path="/tmp/vgpulock", host_path="/usr/local/vgpu/locks/0d4f_train", read_only=False),
    ),
    devices=(
        DeviceNode(path="/dev/nvidiactl"),
        DeviceNode(path="/dev/nvidia0", host_path="/run/nvidia/driver/dev/nvidia0"),
    ),
)
NVIDIA_CTK = f"""\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x86_64-linux-gnu]
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: {A}
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""
"""The form in which nvidia-ctk of NVIDIA/nvidia-container-toolkit prints a spec."""


def test_a_spec_says_what_the_container_gets() -> None:
    assert cdi_spec(KIND, "s1", EDITS) == {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "devices": [
            {
                "name": "s1",
                "containerEdits": {
                    "env": ["CUDA_DEVICE_MEMORY_LIMIT_0=3000m", f"NVIDIA_VISIBLE_DEVICES={A}"],
                    "deviceNodes": [
                        {"path": "/dev/nvidiactl", "permissions": "rw"},
                        {
                            "path": "/dev/nvidia0",
                            "hostPath": "/run/nvidia/driver/dev/nvidia0",
                            "permissions": "rw",
                        },
                    ],
                    "mounts": [
                        {
                            "hostPath": "/usr/local/vgpu/ld.so.preload",
                            "containerPath": "/etc/ld.so.preload",
                            "options": ["ro", "nosuid", "nodev", "bind"],
                        },
                        {
                            "hostPath": "/usr/local/vgpu/locks/0d4f_train",
                            "containerPath": "/tmp/vgpulock",
                            "options": ["rw", "nosuid", "nodev", "bind"],
                        },
                    ],
                },
            }
        ],
    }


def test_a_runtime_reads_the_same_out_of_it() -> None:
    spec = decode_cdi_spec(msgspec.json.encode(cdi_spec(KIND, "s1", EDITS)))
    (_, own) = resolve_cdi(f"{KIND}=s1", [spec])
    assert own == CdiEdits(
        env=["CUDA_DEVICE_MEMORY_LIMIT_0=3000m", f"NVIDIA_VISIBLE_DEVICES={A}"],
        device_nodes=[
            CdiDeviceNode(path="/dev/nvidiactl", permissions="rw"),
            CdiDeviceNode(path="/dev/nvidia0", host_path="/run/nvidia/driver/dev/nvidia0", permissions="rw"),
        ],
        mounts=[
            CdiMount(
                host_path="/usr/local/vgpu/ld.so.preload",
                container_path="/etc/ld.so.preload",
                options=["ro", "nosuid", "nodev", "bind"],
            ),
            CdiMount(
                host_path="/usr/local/vgpu/locks/0d4f_train",
                container_path="/tmp/vgpulock",
                options=["rw", "nosuid", "nodev", "bind"],
            ),
        ],
    )


def test_what_all_devices_have_in_common_stands_in_a_spec_once_and_as_the_last_of_them_says() -> None:
    def spec(name: str, library: str) -> dict[str, Any]:
        mounts = (Mount(container_path="/usr/lib64/libcuda.so.1", host_path=library, read_only=True),)
        return dict(cdi_spec(KIND, name, ContainerEdits(env={"A": name}, driver_mounts=mounts)))

    whole = joined([spec("s1", "/d/libcuda.so.1.0"), spec("s2", "/d/libcuda.so.2.0")])
    assert [mount["hostPath"] for mount in whole["containerEdits"]["mounts"]] == ["/d/libcuda.so.2.0"]
    assert [device["containerEdits"] for device in whole["devices"]] == [{"env": ["A=s1"]}, {"env": ["A=s2"]}]


def test_what_is_not_there_is_left_out() -> None:
    (device,) = msgspec.convert(cdi_spec(KIND, "s1", ContainerEdits(env={"A": "1"})), dict)["devices"]
    assert device == {"name": "s1", "containerEdits": {"env": ["A=1"]}}


def test_names_are_read_from_yaml_and_json() -> None:
    assert defined_devices("nvidia.yaml", NVIDIA_CTK.encode()) == {f"nvidia.com/gpu={A}", "nvidia.com/gpu=all"}
    own = msgspec.json.encode(cdi_spec(KIND, "s1", EDITS))
    assert defined_devices("own.json", own) == defined_devices("own.yaml", own) == {f"{KIND}=s1"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", b"{"),
        ("a.json", b"[]"),
        ("a.yaml", b"kind: [\n"),
        ("a.yaml", b"devices: []\n"),
        ("a.yaml", b"kind: a/b\ndevices: [{}]\n"),
        ("a.yaml", b"kind: a/b\ndevices: {a: b}\n"),
        ("a.yaml", b"\xff\xfe\x00"),
        ("a.yaml", b""),
    ],
)
def test_what_is_no_spec_is_named(name: str, text: bytes) -> None:
    with pytest.raises(UnreadableSpec, match=f"^{name} is not a CDI specification: .*[.]$"):
        defined_devices(name, text)


def test_a_spec_has_a_file_of_its_own() -> None:
    assert spec_file_name("nvidia.com/gpu") == "nvidia.com-gpu.json"


def test_missing_devices_are_a_sentence() -> None:
    assert missing_sentence((f"nvidia.com/gpu={A}", f"nvidia.com/gpu={B}"), ("/etc/cdi", "/var/run/cdi"), "why.") == (
        f"No CDI specification in /etc/cdi or /var/run/cdi defines nvidia.com/gpu={A} and 1 more, so containers that "
        "get these devices cannot start; why."
    )
