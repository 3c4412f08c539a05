from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.keys import DEVICES_ALLOCATED, RESOURCE_COUNT
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import Device, DeviceShare, DeviceUUID, PodShares
from proto.environment import VISIBLE_DEVICES
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, PodStatus, Resources
from simulation.kubelet.container import CreatedContainer
from simulation.outcome import violations
from simulation.verification import capacity_violations, score_violations, total_load

A, B = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")


def gpu(uuid: DeviceUUID, index: int) -> Device:
    return Device(
        uuid=uuid,
        index=index,
        replicas=3,
        memory_mib=40960,
        cores=100,
        type="NVIDIA A100",
        numa=0,
        mode="hami-core",
        healthy=True,
    )


DEVICES: Mapping[str, Device] = {A: gpu(A, 0), B: gpu(B, 1)}


def share(uuid: DeviceUUID, memory_mib: int = 1000, cores: int = 10) -> DeviceShare:
    return DeviceShare(uuid=uuid, memory_mib=memory_mib, cores=cores)


def container(name: str, shares: Sequence[DeviceShare]) -> CreatedContainer:
    """What the daemon's answer makes of these shares."""
    env = {VISIBLE_DEVICES: ",".join(one.uuid for one in shares)}
    for position, one in enumerate(shares):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{position}"] = f"{one.memory_mib}m"
        env[f"CUDA_DEVICE_SM_LIMIT_{position}"] = str(one.cores)
    return CreatedContainer(
        name=name,
        phase="app",
        device_ids=(),
        env=env,
        mounts=(),
        devices=(),
        annotations={},
        cdi_devices=(),
    )


@dataclass
class World:
    """One running pod as decided, and what its containers got."""

    pod: Pod
    created: tuple[CreatedContainer, ...]

    def problems(self) -> list[str]:
        return violations([self.pod], {self.pod.metadata.uid: self.created}, DEVICES, frozenset())

    def with_env(self, **changed: str) -> "World":
        first = self.created[0]
        return World(self.pod, (replace(first, env={**first.env, **changed}), *self.created[1:]))


def world(shares: PodShares) -> World:
    names = [f"c{position}" for position in range(len(shares))]
    limits = [Resources(limits={RESOURCE_COUNT: str(len(one))} if one else {}) for one in shares]
    specified = [Container(name=name, resources=asked) for name, asked in zip(names, limits, strict=True)]
    pod = Pod(
        metadata=ObjectMeta(name="p", uid="u", annotations={DEVICES_ALLOCATED: encode_pod_devices(shares)}),
        spec=PodSpec(node_name="node-1", containers=specified),
        status=PodStatus(phase="Running"),
    )
    return World(pod, tuple(container(name, one) for name, one in zip(names, shares, strict=True)))


PAIR = world(((share(A), share(B, 2000, 20)),))

one_share = st.builds(share, st.sampled_from([A, B]), st.integers(1, 10000), st.integers(0, 25))
one_container = st.lists(one_share, max_size=2, unique_by=lambda one: one.uuid).map(tuple)


@given(st.lists(one_container, min_size=1, max_size=3).map(tuple).filter(any))
def test_an_untouched_outcome_passes(shares: PodShares) -> None:
    assert world(shares).problems() == []


def test_the_order_in_which_a_container_sees_its_gpus_does_not_matter() -> None:
    assert World(PAIR.pod, (container("c0", (share(B, 2000, 20), share(A))),)).problems() == []


@pytest.mark.parametrize(
    ("corrupted", "said"),
    [
        (PAIR.with_env(NVIDIA_VISIBLE_DEVICES="GPU-a,GPU-c"), "GPU-c"),
        (PAIR.with_env(NVIDIA_VISIBLE_DEVICES="GPU-a"), "got ['GPU-a']"),
        (PAIR.with_env(NVIDIA_VISIBLE_DEVICES=""), "got []"),
        (PAIR.with_env(CUDA_DEVICE_MEMORY_LIMIT_1="2001m"), "decided 2000 MiB and 20 % of cores, got 2001 MiB"),
        (PAIR.with_env(CUDA_DEVICE_MEMORY_LIMIT_0="lots"), "memory limit 0 reads 'lots'"),
        (PAIR.with_env(CUDA_DEVICE_SM_LIMIT_0="11"), "got 1000 MiB and 11 %"),
        (PAIR.with_env(CUDA_DEVICE_SM_LIMIT_1="all"), "core limit 1 reads 'all'"),
        (World(PAIR.pod, ()), "container c0: was never created"),
    ],
    ids=["wrong GPU", "GPU missing", "no GPU", "memory", "memory unreadable", "cores", "cores unreadable", "container"],
)
def test_a_corrupted_grant_is_told(corrupted: World, said: str) -> None:
    problems = corrupted.problems()
    assert len(problems) == 1
    assert problems[0].startswith("pod p, container c0: ")
    assert said in problems[0]


def test_gpus_in_a_container_that_asked_for_none_are_told() -> None:
    found = world(((share(A),), ()))
    assert World(found.pod, (found.created[0], container("c1", (share(B),)))).problems()


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([share(A, 30000), share(A, 10961)], "40961 of 40960 MiB"),
        ([share(A, cores=60), share(A, cores=41)], "101 of 100 cores"),
        ([share(A)] * 4, "4 of 3 replicas"),
        ([share(DeviceUUID("GPU-gone"))], "no node has it"),
    ],
)
def test_a_gpu_over_its_capacity_is_told(shares: list[DeviceShare], said: str) -> None:
    problems = capacity_violations(total_load(world(((one,),)).pod for one in shares), DEVICES)
    assert len(problems) == 1
    assert said in problems[0]


def test_a_gpu_filled_to_the_brim_is_not_over_its_capacity() -> None:
    pods = [world(((one,),)).pod for one in (share(A, 40000, 90), share(A, 960, 10))]
    assert capacity_violations(total_load(pods), DEVICES) == []


def test_published_scores_must_be_those_of_the_machine() -> None:
    true = {A: {B: 1220}, B: {A: 1220}}
    assert score_violations("node-1", true, true) == []
    assert score_violations("node-1", {A: {B: 10}, B: {A: 1220}}, true) == [
        "node-1: score of GPU-a to GPU-b is published as 10, the machine has 1220"
    ]
    assert len(score_violations("node-1", {}, true)) == 2
    assert len(score_violations("node-1", true, {})) == 2
