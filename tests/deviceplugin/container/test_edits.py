from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.edits import (
    AllocationSettings,
    ContainerEdits,
    ContainerFacts,
    DeviceListStrategy,
    DeviceNode,
    DriverFeature,
    HamiCore,
    Hardware,
    Mount,
    cdi_names,
    container_edits,
    container_facts,
    override_text,
)
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Container, EnvVar, Resources
from tests.deviceplugin.gpus import INVENTORY, A, B, a100, share

FACTS = ContainerFacts(pod_uid="0d4f", name="train")
HAMI_CORE = HamiCore(
    root="/usr/local", library="/usr/local/vgpu/libvgpu.so.v2", preload="/usr/local/vgpu/ld.so.preload"
)
HOOK_MOUNTS = (
    Mount(container_path="/usr/local/vgpu/libvgpu.so", host_path="/usr/local/vgpu/libvgpu.so.v2", read_only=True),
    Mount(container_path="/usr/local/vgpu", host_path="/usr/local/vgpu/containers/0d4f_train", read_only=False),
    Mount(container_path="/tmp/vgpulock", host_path="/usr/local/vgpu/locks/0d4f_train", read_only=False),
    Mount(container_path="/etc/ld.so.preload", host_path="/usr/local/vgpu/ld.so.preload", read_only=True),
    Mount(container_path="/overrideEnv", host_path="/usr/local/vgpu/overrides/0d4f_train/overrideEnv", read_only=True),
)
LIMITS = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
    "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_DEVICE_SM_LIMIT_0": "30",
    "CUDA_DEVICE_SM_LIMIT_1": "30",
}
ONE_LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "CUDA_DEVICE_SM_LIMIT": "30", "CUDA_DEVICE_SM_LIMIT_0": "30"}
NOTHING_ELSE = {
    "NVIDIA_IMEX_CHANNELS": "void",
    "NVIDIA_NVSWITCH": "disabled",
    "NVIDIA_GDRCOPY": "disabled",
    "NVIDIA_GDS": "disabled",
    "NVIDIA_MOFED": "disabled",
}
"""Beside the names of GPUs: what an image or a ConfigMap may not ask NVIDIA's runtime for."""
NO_RUNTIME = {"NVIDIA_VISIBLE_DEVICES": "void"}
OF_THE_LIBRARY = {
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/0d4f.cache",
    "CUDA_REDIRECT": "/usr/local/vgpu/libvgpu.so",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GPU_CORE_UTILIZATION_POLICY": "default",
    "CUDA_DISABLE_CONTROL": "false",
}
KIND = "k8s.device-plugin.nvidia.com/gpu"
NAMES = (f"{KIND}={A}", f"{KIND}={B}")
ENVVAR, VOLUMES = DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS
ANNOTATIONS, CRI = DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI
CDI_ANNOTATION = {"cdi.k8s.io/nvidia-device-plugin_0d4f_train": ",".join(NAMES)}

CONTROL, NODE_A, NODE_B = (DeviceNode(path=f"/dev/{name}") for name in ("nvidiactl", "nvidia0", "nvidia1"))
HARDWARE = Hardware(control_nodes=(CONTROL,), gpu_nodes={A: (NODE_A,), B: (NODE_B,)})

MIG = DeviceUUID("MIG-cccccccc-0000-0000-0000-000000000000")
MIG_NODES = tuple(DeviceNode(path=f"/dev/{name}") for name in ("nvidia0", "nvidia-caps/nvidia-cap12"))
WITH_MIG = {**INVENTORY, MIG: a100(MIG, 0)}


def edits(settings: AllocationSettings, hami_core: HamiCore | None = None) -> ContainerEdits:
    return container_edits((share(A), share(B)), INVENTORY, FACTS, settings, hami_core, hardware=HARDWARE)


def env(settings: AllocationSettings, hami_core: HamiCore | None = None) -> Mapping[str, str]:
    return container_edits((share(A),), INVENTORY, FACTS, settings, hami_core).env


def null(name: str) -> Mount:
    path = f"/var/run/nvidia-container-devices/{name}"
    return Mount(container_path=path, host_path="/dev/null", read_only=False)


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        ((ENVVAR,), ContainerEdits(env={**LIMITS, **NOTHING_ELSE, "NVIDIA_VISIBLE_DEVICES": f"{A},{B}"})),
        (
            (VOLUMES,),
            ContainerEdits(
                env={**LIMITS, **NOTHING_ELSE, "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
                mounts=(null(A), null(B)),
            ),
        ),
        ((CRI,), ContainerEdits(env={**LIMITS, **NO_RUNTIME}, cdi_devices=NAMES)),
        ((ANNOTATIONS,), ContainerEdits(env={**LIMITS, **NO_RUNTIME}, annotations=CDI_ANNOTATION)),
        (
            (CRI, VOLUMES, ANNOTATIONS, ENVVAR),
            ContainerEdits(
                env={**LIMITS, **NOTHING_ELSE, "NVIDIA_VISIBLE_DEVICES": f"{A},{B}"},
                mounts=(null(A), null(B)),
                annotations=CDI_ANNOTATION,
                cdi_devices=NAMES,
            ),
        ),
    ],
)
def test_each_strategy_tells_the_runtime_in_its_own_way(
    strategies: tuple[DeviceListStrategy, ...], expected: ContainerEdits
) -> None:
    assert edits(AllocationSettings(strategies=strategies)) == expected


def test_driver_files_are_named_one_by_one_and_nvidias_runtime_leaves_the_container_alone() -> None:
    library = Mount(container_path="/usr/lib64/libcuda.so.1", host_path="/d/libcuda.so.1", read_only=True)
    settings = AllocationSettings(strategies=(DeviceListStrategy.DRIVER_FILES,))
    hardware = replace(HARDWARE, driver_mounts=(library,))
    given = container_edits((share(A),), INVENTORY, FACTS, settings, None, hardware=hardware)
    env = {**ONE_LIMIT, "NVIDIA_VISIBLE_DEVICES": "void", "TRITON_LIBCUDA_PATH": "/usr/lib64"}
    assert given == ContainerEdits(env=env, devices=(CONTROL, NODE_A), driver_mounts=(library,))
    told = container_edits((share(A),), INVENTORY, FACTS, AllocationSettings(), None, hardware=hardware)
    assert told.driver_mounts == ()


@pytest.mark.parametrize("strategy", DeviceListStrategy)
def test_every_strategy_mounts_and_preloads_the_library(strategy: DeviceListStrategy) -> None:
    settings = AllocationSettings(strategies=(strategy,))
    bare, found = edits(settings), edits(settings, HAMI_CORE)
    assert found == replace(bare, env={**bare.env, **OF_THE_LIBRARY}, mounts=HOOK_MOUNTS + bare.mounts)


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        ((ENVVAR,), (CONTROL, NODE_A, NODE_B)),
        ((VOLUMES, CRI), (CONTROL, NODE_A, NODE_B)),
        ((CRI, ANNOTATIONS), ()),
    ],
)
def test_device_files_are_named_on_request_unless_cdi_names_them(
    strategies: tuple[DeviceListStrategy, ...], expected: tuple[DeviceNode, ...]
) -> None:
    assert edits(AllocationSettings(strategies=strategies, pass_device_specs=True)).devices == expected


SIX = tuple(DeviceUUID(f"GPU-{letter * 8}-0000-0000-0000-000000000000") for letter in "012345")


@given(st.permutations(range(6)), st.permutations(range(6)), st.integers(1, 6))
def test_limit_i_is_that_of_the_gpu_with_the_ith_address(annotated: list[int], buses: list[int], count: int) -> None:
    """Whatever order the annotation has, and whatever index the driver gave."""
    inventory: dict[DeviceUUID, Device] = {uuid: a100(uuid, 5 - number) for number, uuid in enumerate(SIX)}
    addresses = {uuid: f"00000000:{bus:02X}:00.0" for uuid, bus in zip(SIX, buses, strict=True)}
    chosen = [SIX[number] for number in annotated[:count]]
    shares = tuple(share(uuid, 1000 + SIX.index(uuid), 10 + SIX.index(uuid)) for uuid in chosen)
    hardware = Hardware(pci_addresses=addresses)
    found = container_edits(shares, inventory, FACTS, AllocationSettings(), None, hardware=hardware).env
    by_address = sorted(chosen, key=addresses.__getitem__)
    assert found["NVIDIA_VISIBLE_DEVICES"] == ",".join(by_address)
    for position, uuid in enumerate(by_address):
        assert found[f"CUDA_DEVICE_MEMORY_LIMIT_{position}"] == f"{1000 + SIX.index(uuid)}m"
        assert found[f"CUDA_DEVICE_SM_LIMIT_{position}"] == str(10 + SIX.index(uuid))


@given(st.permutations(SIX))
def test_without_addresses_the_index_decides(annotated: list[DeviceUUID]) -> None:
    inventory = {uuid: a100(uuid, number) for number, uuid in enumerate(SIX)}
    shares = tuple(share(uuid) for uuid in annotated)
    found = container_edits(shares, inventory, FACTS, AllocationSettings(), None)
    assert found.env["NVIDIA_VISIBLE_DEVICES"] == ",".join(SIX)


def test_a_share_without_a_size_is_limited_to_the_whole_gpu() -> None:
    found = container_edits((share(A, 0, 0),), INVENTORY, FACTS, AllocationSettings(), None).env
    assert found["CUDA_DEVICE_MEMORY_LIMIT_0"] == "40960m"
    assert found["CUDA_DEVICE_SM_LIMIT"] == "0"


def test_what_the_node_sets_for_the_library_reaches_it() -> None:
    settings = AllocationSettings(disable_core_limit=True, libcuda_log_level="3")
    assert env(settings) == {
        **ONE_LIMIT,
        **NOTHING_ELSE,
        "NVIDIA_VISIBLE_DEVICES": A,
        "GPU_CORE_UTILIZATION_POLICY": "disable",
        "LIBCUDA_LOG_LEVEL": "3",
    }


def test_a_library_elsewhere_is_told_where_it_lies() -> None:
    hami_core = HamiCore(root="/opt/x", library="/opt/x/vgpu/libvgpu.so", preload="/opt/x/vgpu/ld.so.preload")
    assert env(AllocationSettings(), hami_core)["CUDA_REDIRECT"] == "/opt/x/vgpu/libvgpu.so"


@pytest.mark.parametrize(
    ("own", "disabled", "given"),
    [("force", False, "force"), ("disable", False, "default"), ("FORCE", False, "default"), ("force", True, "disable")],
)
def test_a_container_may_ask_for_stricter_limits_of_cores_and_not_for_looser_ones(
    own: str, disabled: bool, given: str
) -> None:
    facts = replace(FACTS, env=(EnvVar(name="GPU_CORE_UTILIZATION_POLICY", value=own),))
    settings = AllocationSettings(disable_core_limit=disabled)
    found = container_edits((share(A),), INVENTORY, facts, settings, HAMI_CORE).env
    assert found["GPU_CORE_UTILIZATION_POLICY"] == given


def test_processes_without_the_containers_environment_have_its_limits_from_a_file() -> None:
    hami_core = replace(HAMI_CORE, root="/opt/x")
    settings = AllocationSettings(disable_core_limit=True, libcuda_log_level="3")
    given = container_edits((share(A), share(B)), INVENTORY, replace(FACTS, priority=1), settings, hami_core).env
    assert dict(line.split("=", 1) for line in override_text(given).splitlines()) == {
        **LIMITS,
        "GPU_CORE_UTILIZATION_POLICY": "disable",
        "CUDA_TASK_PRIORITY": "1",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/opt/x/vgpu/0d4f.cache",
        "CUDA_REDIRECT": "/opt/x/vgpu/libvgpu.so",
    }


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_a_container_may_switch_the_library_off(word: str) -> None:
    found = container_edits((share(A),), INVENTORY, switched(word), AllocationSettings(), HAMI_CORE)
    assert found.mounts == HOOK_MOUNTS[:-2]
    assert "CUDA_DISABLE_CONTROL" not in found.env


def switched(word: str) -> ContainerFacts:
    return replace(FACTS, env=(EnvVar(name="CUDA_DISABLE_CONTROL", value=word),))


@pytest.mark.parametrize("word", ["", "yes", "tRUE", "0", "false", " true", "$(ON)"])
def test_anything_but_a_true_word_leaves_it_on(word: str) -> None:
    found = container_edits((share(A),), INVENTORY, switched(word), AllocationSettings(), HAMI_CORE)
    assert found.mounts == HOOK_MOUNTS
    assert found.env["CUDA_DISABLE_CONTROL"] == "false"


def test_facts_of_a_container_are_its_environment_and_its_priority() -> None:
    container = Container(
        name="train",
        env=[EnvVar(name="CUDA_DISABLE_CONTROL", value="true"), EnvVar(name="KEY", value_from={"secretKeyRef": {}})],
        resources=Resources(limits={"nvidia.com/priority": "1", "example.com/rank": "2k"}),
    )
    facts = container_facts("0d4f", container, "nvidia.com/priority")
    assert facts == replace(FACTS, env=tuple(container.env), priority=1)
    assert container_facts("0d4f", container, "example.com/rank").priority == 2000
    assert container_facts("0d4f", Container(name="train"), "nvidia.com/priority") == FACTS


def test_the_priority_reaches_the_library() -> None:
    found = container_edits((share(A),), INVENTORY, replace(FACTS, priority=0), AllocationSettings(), None).env
    assert found == {**ONE_LIMIT, **NOTHING_ELSE, "NVIDIA_VISIBLE_DEVICES": A, "CUDA_TASK_PRIORITY": "0"}


@pytest.mark.parametrize(
    ("strategy", "environment", "mounts"),
    [
        (
            ENVVAR,
            {**NOTHING_ELSE, "NVIDIA_VISIBLE_DEVICES": A, "NVIDIA_IMEX_CHANNELS": "0", "NVIDIA_GDS": "enabled"},
            (),
        ),
        (
            VOLUMES,
            {
                **NOTHING_ELSE,
                "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices",
                "NVIDIA_GDS": "enabled",
            },
            (null(A), null("imex/0")),
        ),
        (CRI, NO_RUNTIME, ()),
    ],
)
def test_imex_channels_and_features_follow_the_strategy(
    strategy: DeviceListStrategy, environment: dict[str, str], mounts: tuple[Mount, ...]
) -> None:
    settings = AllocationSettings(strategies=(strategy,), features=(DriverFeature.IMEX, DriverFeature.GDS))
    vendor = "k8s.device-plugin.nvidia.com"
    names = (f"{KIND}={A}", f"{vendor}/imex-channel=0", f"{vendor}/gds=all")
    assert cdi_names((A,), settings) == names
    assert container_edits((share(A),), INVENTORY, FACTS, settings, None) == ContainerEdits(
        env={**ONE_LIMIT, **environment}, mounts=mounts, cdi_devices=names if strategy is CRI else ()
    )


def test_a_mig_instance_comes_without_limits() -> None:
    settings = AllocationSettings(strategies=(ENVVAR, CRI), pass_device_specs=True)
    hardware = replace(HARDWARE, gpu_nodes={MIG: MIG_NODES})
    assert container_edits((share(MIG),), WITH_MIG, FACTS, settings, None, hardware=hardware) == ContainerEdits(
        env={**NOTHING_ELSE, "NVIDIA_VISIBLE_DEVICES": MIG},
        devices=(CONTROL, *MIG_NODES),
        cdi_devices=(f"{KIND}={MIG}",),
    )


def test_a_part_of_a_gpu_beside_a_mig_instance_is_still_limited() -> None:
    found = container_edits((share(MIG), share(B)), WITH_MIG, FACTS, AllocationSettings(), HAMI_CORE)
    env = {**ONE_LIMIT, **OF_THE_LIBRARY, **NOTHING_ELSE, "NVIDIA_VISIBLE_DEVICES": f"{MIG},{B}"}
    assert found == ContainerEdits(env=env, mounts=HOOK_MOUNTS)


def test_instances_of_one_gpu_share_its_file() -> None:
    other = DeviceUUID("MIG-dddddddd-0000-0000-0000-000000000000")
    right = DeviceNode(path="/dev/nvidia-caps/nvidia-cap21")
    hardware = Hardware(gpu_nodes={MIG: MIG_NODES, other: (MIG_NODES[0], right)})
    inventory = {**WITH_MIG, other: a100(other, 0)}
    settings = AllocationSettings(pass_device_specs=True)
    found = container_edits((share(MIG), share(other)), inventory, FACTS, settings, None, hardware=hardware)
    assert found.devices == (*MIG_NODES, right)


def test_the_cdi_annotation_key_stays_a_valid_key() -> None:
    facts = ContainerFacts(pod_uid="5f0c1f5e-9d43-4b7e-8c53-6f9d5c6f0a11", name="a" * 63)
    settings = AllocationSettings(strategies=(ANNOTATIONS,))
    (key,) = container_edits((share(A),), INVENTORY, facts, settings, None).annotations
    assert len(key.partition("/")[2]) <= 63
