"""Who sees the page on an address that other hosts reach."""

import pytest

from scheduler_ext.status.access import ALLOWED_SECONDS, MOST_A_SECOND, MOST_REMEMBERED, PATH, REFUSED_SECONDS
from scheduler_ext.status.server import HEADER
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.scheduler_ext.status.reviews import asking
from tests.scheduler_ext.status.shown import Shown, node
from tests.scheduler_ext.status.test_server import Follower, showing

ANA = {"Authorization": "Bearer good"}


async def status(it: Shown, **headers: str) -> tuple[int, str]:
    async with it.rig.http.get(f"{it.page}events", headers=headers) as response:
        return response.status, "" if response.status == 200 else await response.text()


async def test_the_stream_needs_the_token_of_a_user_with_the_right() -> None:
    async with showing(node("n"), for_other_hosts=True) as it:
        it.rig.server.users |= {"good": "ana", "other": "bob"}
        assert await status(it) == (401, "a token is needed to see this page\n")
        for headers in (
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer "},
            {"Authorization": "Basic Z29vZDo="},
            {"Cookie": "token=good"},
        ):
            assert (await status(it, **headers))[0] == 401, headers
        async with it.rig.http.get(f"{it.page}events?token=good") as response:
            assert response.status == 401
        assert (await status(it, **{HEADER: "good"}))[0] == 200
        async with it.rig.http.get(f"{it.page}events", headers=ANA) as response:
            assert "n" in (await Follower(response).until("nodes"))["nodes"]
        it.rig.server.denied.add(("get", PATH))
        assert await status(it, **{HEADER: "other"}) == (403, f"user bob has no right to get {PATH}\n")


async def test_the_files_show_nothing_of_the_cluster_and_are_open() -> None:
    async with showing(node("secret-node"), for_other_hosts=True) as it:
        for path in ("", "page.js"):
            async with it.rig.http.get(it.page + path, headers={"Host": "topogpu.example"}) as response:
                assert response.status == 200
                assert "secret-node" not in await response.text()


@pytest.mark.parametrize(
    "fault", [Fault(status=403), Fault(status=500), Fault(drop="before"), Fault(body=b"[]"), Fault(body=b"nonsense")]
)
async def test_without_an_answer_of_the_api_server_no_one_sees_the_page(fault: Fault) -> None:
    async with EmbeddedApiServer() as server, asking(server) as rig:
        server.users["good"] = "ana"
        server.inject(fault)
        refusal = await rig.access.refusal("good")
        assert refusal is not None
        assert refusal.status == 503
        server.faults.clear()
        assert await rig.access.refusal("good") is None


async def test_a_user_without_a_name_or_an_empty_answer_opens_nothing() -> None:
    async with EmbeddedApiServer() as server, asking(server) as rig:
        for body in (b"{}", b'{"status": {"authenticated": true}}', b'{"status": {"user": {"username": "ana"}}}'):
            server.inject(Fault(body=body, times=1))
            refusal = await rig.access.refusal(f"token-{body!r}")
            assert refusal is not None
            assert refusal.status == 401


async def test_a_verdict_is_remembered_and_then_asked_for_again() -> None:
    async with EmbeddedApiServer() as server, asking(server) as rig:
        server.users["good"] = "ana"
        assert await rig.access.refusal("good") is None
        server.denied.add(("get", PATH))
        rig.now += ALLOWED_SECONDS - 1
        assert await rig.access.refusal("good") is None
        rig.now += 2
        refusal = await rig.access.refusal("good")
        assert refusal is not None
        assert refusal.status == 403
        server.denied.clear()
        rig.now += REFUSED_SECONDS + 1
        assert await rig.access.refusal("good") is None


async def test_strangers_cannot_keep_the_api_server_busy_nor_fill_the_memory() -> None:
    async with EmbeddedApiServer() as server, asking(server) as rig:
        server.users["good"] = "ana"
        assert await rig.access.refusal("good") is None
        found = [await rig.access.refusal(f"guess-{number}") for number in range(3 * MOST_A_SECOND)]
        assert [each.status for each in found if each] == [401] * (MOST_A_SECOND - 1) + [429] * (2 * MOST_A_SECOND + 1)
        assert await rig.access.refusal("good") is None  # known already
        assert len(rig.reviews()) == MOST_A_SECOND
        for number in range(MOST_REMEMBERED + 50):
            rig.now += 1
            await rig.access.refusal(f"more-{number}")
        assert len(rig.access._known) == MOST_REMEMBERED
