import asyncio
import threading

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

    server = MetricsServer(metrics, look, [])
    request = make_mocked_request("GET", "/metrics")
    scrapes = [asyncio.create_task(server._scrape(request)) for _ in range(3)]
    await asyncio.sleep(0)
    metrics.may_write.set()
    first, *others = [response.body for response in await asyncio.gather(*scrapes)]
    assert others == [first, first]
    assert len(looks) == 1
    await server._scrape(request)
    assert len(looks) == 2
