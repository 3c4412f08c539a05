from dataclasses import replace

import pytest

from deviceplugin.allocation import (
    AllocationSettings,
    ContainerEdits,
    ContainerFacts,
    DeviceListStrategy,
    Hook,
    Mount,
    container_edits,
)
from tests.deviceplugin.gpus import INVENTORY, A, B, share

FACTS = ContainerFacts(pod_uid="0d4f", name="train")
HOOK = Hook(root="/usr/local", library="/usr/local/vgpu/libvgpu.so", preload="/usr/local/vgpu/ld.so.preload")
LIMITS = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
    "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_DEVICE_SM_LIMIT_0": "30",
    "CUDA_DEVICE_SM_LIMIT_1": "30",
}


def edits(*strategies: DeviceListStrategy) -> ContainerEdits:
    return container_edits((share(A), share(B)), INVENTORY, FACTS, AllocationSettings(strategies=strategies), None)


def test_two_gpus_by_environment_without_the_library() -> None:
    assert edits(DeviceListStrategy.ENVVAR) == ContainerEdits(env={**LIMITS, "NVIDIA_VISIBLE_DEVICES": f"{A},{B}"})


def test_gpus_and_limits_follow_the_index_not_the_annotation() -> None:
    shares = (share(B, 2000, 20), share(A, 1000, 10))
    env = container_edits(shares, INVENTORY, FACTS, AllocationSettings(), None).env
    assert env == {
        "NVIDIA_VISIBLE_DEVICES": f"{A},{B}",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "2000m",
        "CUDA_DEVICE_SM_LIMIT": "10",
        "CUDA_DEVICE_SM_LIMIT_0": "10",
        "CUDA_DEVICE_SM_LIMIT_1": "20",
    }


def test_a_share_without_a_size_is_limited_to_the_whole_gpu() -> None:
    env = container_edits((share(A, 0, 0),), INVENTORY, FACTS, AllocationSettings(), None).env
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "40960m"
    assert env["CUDA_DEVICE_SM_LIMIT"] == "0"


def test_the_library_is_mounted_and_preloaded_where_it_is_installed() -> None:
    found = container_edits((share(A),), INVENTORY, FACTS, AllocationSettings(oversubscribed=True), HOOK)
    assert found.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/0d4f.cache"
    assert found.env["CUDA_OVERSUBSCRIBE"] == "true"
    assert "CUDA_REDIRECT" not in found.env
    assert found.mounts == (
        Mount(container_path="/usr/local/vgpu/libvgpu.so", host_path="/usr/local/vgpu/libvgpu.so", read_only=True),
        Mount(container_path="/usr/local/vgpu", host_path="/usr/local/vgpu/containers/0d4f_train", read_only=False),
        Mount(container_path="/tmp/vgpulock", host_path="/tmp/vgpulock", read_only=False),
        Mount(container_path="/etc/ld.so.preload", host_path="/usr/local/vgpu/ld.so.preload", read_only=True),
    )


def test_a_library_elsewhere_is_told_where_it_lies() -> None:
    hook = Hook(root="/opt/x", library="/opt/x/vgpu/libvgpu.so", preload="/opt/x/vgpu/ld.so.preload")
    env = container_edits((share(A),), INVENTORY, FACTS, AllocationSettings(), hook).env
    assert env["CUDA_REDIRECT"] == "/opt/x/vgpu/libvgpu.so"


@pytest.mark.parametrize(("word", "preloaded"), [("true", False), ("1", False), ("yes", True), ("", True)])
def test_a_container_may_switch_the_library_off(word: str, preloaded: bool) -> None:
    facts = replace(FACTS, env={"CUDA_DISABLE_CONTROL": word})
    mounts = container_edits((share(A),), INVENTORY, facts, AllocationSettings(), HOOK).mounts
    assert ("/etc/ld.so.preload" in {mount.container_path for mount in mounts}) is preloaded


def test_volume_mounts_name_the_gpus() -> None:
    found = edits(DeviceListStrategy.VOLUME_MOUNTS)
    assert found.env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert [mount.container_path for mount in found.mounts] == [
        f"/var/run/nvidia-container-devices/{A}",
        f"/var/run/nvidia-container-devices/{B}",
    ]


def test_cdi_alone_leaves_the_environment_to_the_limits() -> None:
    names = tuple(f"k8s.device-plugin.nvidia.com/gpu={uuid}" for uuid in (A, B))
    assert edits(DeviceListStrategy.CDI_CRI) == ContainerEdits(env=LIMITS, cdi_devices=names)
    assert edits(DeviceListStrategy.CDI_ANNOTATIONS) == ContainerEdits(
        env=LIMITS, annotations={"cdi.k8s.io/nvidia-device-plugin_0d4f_train": ",".join(names)}
    )


def test_the_cdi_annotation_key_stays_a_valid_key() -> None:
    facts = ContainerFacts(pod_uid="5f0c1f5e-9d43-4b7e-8c53-6f9d5c6f0a11", name="a" * 63)
    settings = AllocationSettings(strategies=(DeviceListStrategy.CDI_ANNOTATIONS,))
    (key,) = container_edits((share(A),), INVENTORY, facts, settings, None).annotations
    assert len(key.partition("/")[2]) <= 63
