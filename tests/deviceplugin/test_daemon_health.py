"""GPUs that fall ill and recover, seen through the daemon as a process."""

import pytest

from simulation.nvml.machine_file import Event, Fault, RowsRemapped, UncorrectedErrors, lost_gpu
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.registration import eventually, until

pytestmark = pytest.mark.needs_compiler

REPLICAS = 40
"""Of four GPUs."""


async def shows(node: DaemonRig, *ill: int) -> None:
    """Kubelet and the Node's annotation say that these GPUs are ill and the others well."""
    await until(lambda: node.capacity() == (REPLICAS, REPLICAS - 10 * len(ill)) and node.ill() == set(ill))
    assert await node.unhealthy() == set(ill)


async def registered_for_events(node: DaemonRig) -> None:
    await eventually(lambda: node.counts('topogpu_health_events_total{kind="registration"}'))


async def test_a_gpu_with_a_fatal_xid_leaves_alone_and_returns_by_itself() -> None:
    async with daemon("--health-recovery-seconds", "1") as node:
        await registered_for_events(node)
        writes = node.writes()
        programs_fault = Event(gpu=2, data=31)
        node.machine(programs_fault)
        await until(lambda: node.said("the driver reported XID 31"))
        node.machine(programs_fault, Event(gpu=1, data=79))
        await shows(node, 1)
        assert node.writes() == writes + 1
        await shows(node)
        await until(lambda: len(node.events("GPUHealthy")) == 1)
        name = f"GPU 1 ({node.uuid(1)})"
        assert node.events("GPUUnhealthy") == [
            f"{name} is unhealthy: the driver reported XID 79 (GPU has fallen off the bus)"
        ]
        assert node.events("GPUHealthy") == [f"{name} is healthy again"]
        assert (node.writes(), node.problems()) == (writes + 2, [])


async def test_what_no_event_tells_is_seen_and_each_gpu_has_its_own_reason() -> None:
    faults: list[Fault] = [RowsRemapped(gpu=2, pending=True)]
    async with daemon(faults=faults) as node:
        await shows(node, 2)
        await registered_for_events(node)
        # An ignored XID is followed by a poll all the same, which finds the count that rose.
        faults += [UncorrectedErrors(gpu=3, count=1), Event(gpu=3, data=31)]
        node.machine(*faults)
        await shows(node, 2, 3)
        node.machine(*faults, lost_gpu(0))
        await shows(node, 0, 2, 3)
        reasons = {
            2: "a remapped memory row waits for a GPU reset",
            3: "uncorrected memory errors: 1 new",
            0: "it does not answer: GPU is lost",
        }
        expected = [f"GPU {gpu} ({node.uuid(gpu)}) is unhealthy: {reason}" for gpu, reason in reasons.items()]
        await until(lambda: len(node.events("GPUUnhealthy")) == len(expected))
        assert node.events("GPUUnhealthy") == expected
        assert (node.events("GPUHealthy"), node.problems()) == ([], [])
