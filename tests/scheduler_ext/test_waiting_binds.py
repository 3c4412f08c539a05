"""An API server that takes its time over Bindings, and everything else that must go on meanwhile."""

import asyncio
from collections import Counter
from dataclasses import replace

import aiohttp

from simulation.apiserver import Fault
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig, running

BINDS = 1000


def bindings(rig: Rig) -> int:
    """Those that the API server has been asked for."""
    return sum(request.subresource == "binding" for request in rig.server.requests)


def events(rig: Rig) -> int:
    return len(rig.server.store.objects("events"))


async def offered_on_a_new_connection(rig: Rig, name: str, *nodes: str) -> list[str]:
    """As Go opens one while all that it has are busy."""
    question = {"Pod": pod_json(name, memory_mib=10), "Nodes": None, "NodeNames": list(nodes)}
    async with aiohttp.ClientSession() as http, http.post(f"{rig.url}/filter", json=question) as response:
        answer = await response.json()
        return list(answer["NodeNames"])


async def test_a_thousand_binds_that_wait_leave_everything_else_as_it_was() -> None:
    async with (
        running(node_json("a", gpus=8, replicas=BINDS), bind_deadline_seconds=120) as one,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        rig = replace(one, http=http)
        rig.server.inject(Fault(subresource="binding", latency_seconds=10))
        pods = [rig.add_pod(f"p{number}", memory_mib=10) for number in range(BINDS)]
        for pod in pods:
            assert (await rig.filter(pod, "a"))["NodeNames"] == ["a"]
        waiting = [asyncio.create_task(rig.bind(pod, "a")) for pod in pods]

        async def all_are_sent() -> bool:
            return bindings(rig) == BINDS

        await until(all_are_sent)
        assert not all(each.done() for each in waiting)
        told = events(rig)
        assert await offered_on_a_new_connection(rig, "asks", "a") == ["a"]
        rig.server.create(node_json("later"))

        async def later_is_known() -> bool:
            return await offered_on_a_new_connection(rig, "hopes", "later") == ["later"]

        await until(later_is_known)

        async def is_told_of() -> bool:
            return events(rig) > told

        await until(is_told_of)
        assert Counter(await asyncio.gather(*waiting)) == {"": BINDS}
