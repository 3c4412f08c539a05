from tests.scheduler_ext.rig import running


async def test_kubelet_is_answered_beside_the_metrics_where_it_cannot_reach_the_verbs() -> None:
    async with running() as rig:
        statuses = {}
        for path in ("/healthz", "/readyz", "/metrics"):
            async with rig.http.get(rig.metrics_url + path) as response:
                statuses[path] = response.status
        assert statuses == {"/healthz": 200, "/readyz": 200, "/metrics": 200}
        async with rig.http.post(rig.metrics_url + "/filter", data="{}") as response:
            assert response.status == 404
