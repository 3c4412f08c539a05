import asyncio
import time
from dataclasses import replace
from pathlib import Path

from proto.kubernetes.client import ApiServer
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.nudging import Nudger
from scheduler_ext.scheduling.candidates import Candidates
from scheduler_ext.scheduling.waiting import WaitingPods
from simulation.apiserver import EmbeddedApiServer
from tests.scheduler_ext.gpus import container, device, node, pod, request
from tests.scheduler_ext.rig import eventually, now, pod_json


async def test_a_replica_that_does_not_lead_nudges_nobody(tmp_path: Path) -> None:
    ledger, waiting = Ledger(), WaitingPods()
    ledger.replace_nodes([node("n", [device(0)])])
    nudges: list[str] = []
    nudges_when_asked: list[int] = []

    def leads() -> bool:
        """From the second time on."""
        nudges_when_asked.append(len(nudges))
        return len(nudges_when_asked) > 1

    async with EmbeddedApiServer() as server:
        uid = server.create(pod_json("p"))["metadata"]["uid"]
        waiting.refused(replace(request(pod(container(gpu=1))), uid=uid), 0, time.monotonic())
        (tmp_path / "config").write_text(server.kubeconfig())
        api = await ApiServer.connect(str(tmp_path / "config"))
        nudger = Nudger(
            api=api,
            ledger=ledger,
            candidates=Candidates(ledger),
            waiting=waiting,
            leads=leads,
            nudged=lambda: nudges.append("p"),
            now=now,
            monotonic=time.monotonic,
        )
        work = asyncio.create_task(nudger.run())
        for times in (1, 2):
            nudger.freed()

            async def asked(times: int = times) -> bool:
                return len(nudges_when_asked) == times

            await eventually(asked)

        async def nudged() -> bool:
            return nudges == ["p"]

        await eventually(nudged)
        assert nudges_when_asked == [0, 0]
        work.cancel()
        await api.close()
