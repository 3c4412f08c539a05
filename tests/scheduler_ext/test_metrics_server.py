import asyncio
import threading

import pytest
from aiohttp import Payload, web
from aiohttp.test_utils import make_mocked_request

from scheduler_ext.metric_families import Seen
from scheduler_ext.metrics import Metrics
from scheduler_ext.metrics_server import MetricsServer
from tests.scheduler_ext.rig import running
from tests.scheduler_ext.test_metrics import seen


async def test_kubelet_is_answered_beside_the_metrics_where_it_cannot_reach_the_verbs() -> None:
    async with running() as rig:
        statuses = {}
        for path in ("/healthz", "/readyz", "/metrics"):
            async with rig.http.get(rig.metrics_url + path) as response:
                statuses[path] = response.status
        assert statuses == {"/healthz": 200, "/readyz": 200, "/metrics": 200}
        async with rig.http.post(rig.metrics_url + "/filter", data="{}") as response:
            assert response.status == 404


class Slow(Metrics):
    """Writes no page before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()

    def exposition(self, seen: Seen) -> bytes:
        self.may_write.wait()
        return super().exposition(seen)


async def test_however_many_scrape_at_once_one_page_is_written() -> None:
    metrics, looks = Slow(), []

    def look() -> Seen:
        looks.append(seen())
        return looks[-1]

    server = MetricsServer(metrics, look, [], lambda: 0.0)
    request = make_mocked_request("GET", "/metrics")
    scrapes = [asyncio.create_task(server._scrape(request)) for _ in range(3)]
    await asyncio.sleep(0)
    metrics.may_write.set()
    first, *others = [page_of(response) for response in await asyncio.gather(*scrapes)]
    assert others == [first, first]
    assert len(looks) == 1
    await server._scrape(request)
    assert len(looks) == 2


@pytest.mark.parametrize(("took", "until"), [(3.0, 9.0), (60.0, 70.0)])
async def test_a_page_is_handed_out_again_for_twice_as_long_as_it_took_to_write(took: float, until: float) -> None:
    """Within reason: ten seconds at the most."""
    now, looks = [0.0], []

    def look() -> Seen:
        looks.append(now[0])
        now[0] += took
        return seen()

    server = MetricsServer(Metrics(), look, [], lambda: now[0])
    for asked in (0.0, took, until - 0.1, until):
        now[0] = asked
        await server._scrape(make_mocked_request("GET", "/metrics"))
    assert looks == [0.0, until]


def page_of(response: web.Response) -> str:
    body = response.body
    assert isinstance(body, Payload)
    return body.decode()
