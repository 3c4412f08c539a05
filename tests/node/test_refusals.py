"""What kubelet does with our refusals, and where people read them."""

import asyncio

import pytest

from proto.devices import DeviceShare, DeviceUUID
from simulation.nvml.machine_file import lost_gpu
from tests.node.pods import SEVERAL, Pods, container, decided, pod
from tests.node.real_node import NODE
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
QUICK = ("--remediation-seconds", "10", "--read-seconds", "1")


def share(uuid: DeviceUUID, memory_mib: int = 1000) -> DeviceShare:
    return DeviceShare(uuid=uuid, memory_mib=memory_mib, cores=0)


async def told(pods: Pods, name: str, text: str) -> None:
    """In an event of the pod."""

    async def found() -> bool:
        return any(text in message for message in await pods.messages(name))

    await until(found)


async def waiting(pods: Pods, name: str) -> tuple[str, str]:
    """Why its only container waits, once kubelet says so."""

    async def state() -> tuple[str, str]:
        (status,) = (await pods.get(name))["status"]["containerStatuses"]
        words = status["state"].get("waiting", {})
        return words.get("reason", ""), words.get("message", "")

    async def said() -> bool:
        return bool((await state())[1])

    await until(said)
    return await state()


async def test_an_allocate_that_cannot_be_answered_fails_the_pod_and_its_message_says_why(pods: Pods) -> None:
    await pods.serve("--allocation", "immediate")
    await pods.add_bound(pod("undecided", container()), ())
    status = await pods.failed("undecided")
    assert (status["reason"], status["message"]) == (
        "UnexpectedAdmissionError",
        "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = no known pod on node "
        f"{NODE} waits for 1 GPUs, which is unexpected",
    )


async def test_a_start_that_cannot_be_proven_waits_and_an_event_of_the_pod_says_why(pods: Pods) -> None:
    await pods.serve("--allocation", "slots")
    await pods.add_bound(pod("greedy", container()), ((share(pods.node.uuid(0), 50000),),))
    refusal = (
        f": pod {pods.namespace}/greedy, container main: 50000 MiB were decided of {pods.node.uuid(0)}, which has 40960"
    )
    await told(pods, "greedy", refusal)
    reason, message = await waiting(pods, "greedy")
    assert reason == "CreateContainerConfigError"
    assert message.startswith(
        "device plugin PreStartContainer rpc failed with err: rpc error: code = FailedPrecondition desc = kubelet asks "
    )
    assert message.endswith(refusal)


async def test_a_lost_gpu_is_not_counted_and_its_containers_wait_until_it_is_well_again(scheduled: Pods) -> None:
    node = scheduled.node
    await scheduled.serve("--allocation", "slots", *QUICK, *SEVERAL)
    await scheduled.add(pod("again", container(gpumem=700, ends=True)))
    await scheduled.starts("again")
    (lost,) = decided(await scheduled.get("again"), "main")
    number = next(gpu for gpu in range(8) if node.uuid(gpu) == lost.uuid)
    node.gpus(lost_gpu(number))
    try:
        await scheduled.offered(70)
        await told(scheduled, "again", f"{lost.uuid} is unhealthy")
        await scheduled.add(pod("seven", container(gpus=7, gpumem=500)))
        await scheduled.started("seven")
        await scheduled.check("seven", "main")
        assert lost.uuid not in {share.uuid for share in decided(await scheduled.get("seven"), "main")}
    finally:
        await asyncio.to_thread(node.gpus)
    await scheduled.offered(80)
    known = (await scheduled.starts("again"))[-1].number
    await scheduled.check("again", "main", number=known + 1)
