"""CPUs beside GPUs with a real kubelet: its Topology Manager puts pods where their GPUs were decided.

The host has fewer NUMA nodes and CPUs than kubelet is shown, so containers are not bound to the CPUs that kubelet gives
them: what kubelet decided and lists is looked at.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from grpc import aio

from proto.annotations import keys
from proto.annotations.node_numa import TopologyPolicy, decode_numa
from proto.devices import DeviceShare
from proto.podresources import podresources_v1_pb2 as wire
from proto.podresources.podresources_v1_pb2_grpc import PodResourcesListerStub
from tests.node.pods import Pods, container, decided, pod
from tests.node.real_node import NODE, ZONE_CPUS, RealNode
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
JsonObject = dict[str, Any]


@contextmanager
def aligned(machine: RealNode, policy: str, scope: str = "container") -> Iterator[TopologyPolicy]:
    machine.power_off()
    machine.align(policy, scope)
    yield TopologyPolicy(policy)
    machine.power_off()
    machine.align_no_more()


@pytest.fixture(params=["single-numa-node", "restricted"])
def policy(machine: RealNode, request: pytest.FixtureRequest) -> Iterator[TopologyPolicy]:
    with aligned(machine, request.param) as found:
        yield found


@pytest.fixture(params=["single-numa-node", "restricted"])
def policy_for_pods(machine: RealNode, request: pytest.FixtureRequest) -> Iterator[TopologyPolicy]:
    """With scope `pod`."""
    with aligned(machine, request.param, "pod") as found:
        yield found


@pytest.fixture
def best_effort(machine: RealNode) -> Iterator[TopologyPolicy]:
    with aligned(machine, "best-effort") as found:
        yield found


def pinned(name: str, *cpus: int, gpumem: int | None = None) -> JsonObject:
    """A pod of class Guaranteed. Each of its containers has one GPU, whole without `gpumem`, and so many CPUs."""
    made = []
    for number, amount in enumerate(cpus):
        made.append(container(f"c{number}" if number else "main", gpumem=gpumem))
        made[-1]["resources"]["limits"] |= {"cpu": str(amount), "memory": "32Mi"}
    return pod(name, *made)


async def numa_is_shown(pods: Pods, policy: TopologyPolicy) -> None:
    async def shown() -> bool:
        _, node = await pods.peer.send("GET", f"/api/v1/nodes/{NODE}")
        value = node["metadata"]["annotations"].get(keys.NODE_NUMA, "")
        return bool(value) and decode_numa(value).policy is policy and bool(decode_numa(value).zones)

    await until(shown)


async def cpus_of(pods: Pods, name: str) -> list[int]:
    """Once kubelet, which may have started again, lists them."""
    found: list[int] = []

    async def listed() -> bool:
        async with aio.insecure_channel(f"unix:{pods.node.root}/pod-resources/kubelet.sock") as channel:
            answer = await PodResourcesListerStub(channel).List(wire.ListPodResourcesRequest())
        own = [one for one in answer.pod_resources if (one.namespace, one.name) == (pods.namespace, name)]
        found[:] = [cpu for one in own for each in one.containers for cpu in each.cpu_ids]
        return bool(found)

    await until(listed)
    return found


async def zone_of(pods: Pods, name: str) -> int:
    """Of a running pod; its CPUs, as kubelet lists them, and its GPUs, as decided and given, are on this one."""
    await pods.started(name)
    found = await pods.get(name)
    [zone] = {cpu // ZONE_CPUS for cpu in await cpus_of(pods, name)}
    numa = {pods.node.uuid(number): gpu.numa for number, gpu in enumerate(pods.node.description.gpus)}
    for each in found["spec"]["containers"]:
        await pods.check(name, each["name"])
        assert {numa[share.uuid] for share in decided(found, each["name"])} == {zone}
    return zone


async def says(pods: Pods, name: str, *words: str) -> None:
    """An event of the pod has these words."""

    async def said() -> bool:
        return any(all(word in message for word in words) for message in await pods.messages(name))

    await until(said)


async def waits_because(pods: Pods, name: str, words: str) -> None:
    await says(pods, name, words)
    assert (await pods.get(name))["status"]["phase"] == "Pending"


async def test_pods_run_on_the_numa_node_of_their_gpus_and_others_say_why_they_wait(
    policy: TopologyPolicy, scheduled: Pods
) -> None:
    await scheduled.serve()
    await numa_is_shown(scheduled, policy)
    zones = []
    for number in range(4):
        await scheduled.add(pinned(f"p{number}", 3, gpumem=4000))
        zones.append(await zone_of(scheduled, f"p{number}"))
    assert zones == sorted({gpu.numa for gpu in scheduled.node.description.gpus})
    # Kubelet would still take it: CPUs are left on NUMA nodes without GPUs, and GPUs have room.
    await scheduled.add(pinned("full", 3, gpumem=4000), pinned("large", ZONE_CPUS + 1, gpumem=4000))
    for name in ("full", "large"):
        await waits_because(scheduled, name, "no NUMA node has enough CPUs and GPUs")
    await scheduled.remove("p1")
    assert await zone_of(scheduled, "full") == zones[1]


async def test_a_numa_node_whose_gpus_are_full_is_left_out(policy: TopologyPolicy, scheduled: Pods) -> None:
    await scheduled.serve()
    await numa_is_shown(scheduled, policy)
    zones = []
    for number in range(3):
        await scheduled.add(pinned(f"w{number}", 1))
        zones.append(await zone_of(scheduled, f"w{number}"))
    first, second, *_ = sorted({gpu.numa for gpu in scheduled.node.description.gpus})
    assert zones == [first, first, second]
    await asyncio.to_thread(scheduled.node.stop_kubelet)
    await asyncio.to_thread(scheduled.node.start_kubelet)
    await scheduled.offered(80)
    # Kubelet judges running pods again, with the hints of the replicas that they hold.
    for number, zone in enumerate(zones):
        assert await zone_of(scheduled, f"w{number}") == zone


async def test_a_pod_that_kubelet_puts_elsewhere_or_refuses_has_an_event_that_says_so(
    policy: TopologyPolicy, pods: Pods
) -> None:
    """As if the decision had expected something else."""
    await pods.serve()
    await numa_is_shown(pods, policy)
    last = len(pods.node.description.gpus) - 1
    share = DeviceShare(uuid=pods.node.uuid(last), memory_mib=4000, cores=0)
    await pods.add_bound(pinned("apart", 2, gpumem=4000), ((share,),))
    await pods.started("apart")
    await says(pods, "apart", "CPUsApartFromGPUs", "container main has CPUs of NUMA node 1")
    await pods.add_bound(pinned("large", ZONE_CPUS + 1, gpumem=4000), ((share,),))
    assert (await pods.failed("large"))["reason"] == "TopologyAffinityError"
    await says(pods, "large", "RefusedByTopologyManager", policy)


async def test_pods_that_come_at_once_and_after_others_have_gone_are_beside_their_gpus(
    policy: TopologyPolicy, scheduled: Pods
) -> None:
    await scheduled.serve()
    await numa_is_shown(scheduled, policy)
    names = [f"p{number}" for number in range(8)]
    await scheduled.add(*(pinned(name, 1, gpumem=None if number % 2 else 20000) for number, name in enumerate(names)))
    for name in names:
        await zone_of(scheduled, name)
    await scheduled.remove(*names[:4])
    again = [f"q{number}" for number in range(4)]
    await scheduled.add(*(pinned(name, 1) for name in again))
    for name in again:
        await zone_of(scheduled, name)


async def test_containers_of_a_pod_that_is_aligned_as_a_whole_are_beside_their_gpus(
    policy_for_pods: TopologyPolicy, scheduled: Pods
) -> None:
    await scheduled.serve()
    await numa_is_shown(scheduled, policy_for_pods)
    await scheduled.add(pinned("large", 3, 2, gpumem=4000))
    await waits_because(scheduled, "large", "no NUMA node has enough CPUs and GPUs")
    zones = sorted({gpu.numa for gpu in scheduled.node.description.gpus})
    for number in range(3):
        await scheduled.add(pinned(f"p{number}", 1, 2, gpumem=4000))
        assert await zone_of(scheduled, f"p{number}") == zones[number]


async def test_pods_are_beside_their_gpus_where_kubelet_does_its_best_and_run_where_it_cannot(
    best_effort: TopologyPolicy, scheduled: Pods
) -> None:
    await scheduled.serve()
    await numa_is_shown(scheduled, best_effort)
    zones = []
    for number in range(4):
        await scheduled.add(pinned(f"p{number}", 3, gpumem=4000))
        zones.append(await zone_of(scheduled, f"p{number}"))
    assert zones == sorted({gpu.numa for gpu in scheduled.node.description.gpus})
    await scheduled.add(pinned("large", ZONE_CPUS + 1, gpumem=4000))
    await scheduled.started("large")


async def test_pods_that_a_controller_makes_again_do_not_go_where_kubelet_has_refused_one(
    policy: TopologyPolicy, scheduled: Pods
) -> None:
    """The daemon does not know the policy."""
    await scheduled.serve("--kubelet-config", "", "--features", "numa")
    for number in range(2):
        await scheduled.add(pinned(f"r{number}", ZONE_CPUS + 1, gpumem=4000))
        if not number:
            assert (await scheduled.failed("r0"))["reason"] == "TopologyAffinityError"
            await says(scheduled, "r0", "RefusedByTopologyManager", "set kubelet_config")
    await waits_because(scheduled, "r1", "has refused a pod with the same requests there")
    # Others are not concerned.
    await scheduled.add(pinned("small", 1, gpumem=4000))
    await scheduled.started("small")
    await scheduled.remove("small")
    assert (await scheduled.failed("r1"))["reason"] == "TopologyAffinityError"
