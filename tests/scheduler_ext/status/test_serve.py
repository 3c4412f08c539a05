"""The page as `topogpu-scheduler serve` starts it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler_ext.cli import main
from scheduler_ext.status.server import HEADER
from simulation.apiserver import EmbeddedApiServer
from tests.scheduler_ext.extender_process import extender, prepare
from tests.scheduler_ext.status.shown import node
from tests.scheduler_ext.status.test_server import Follower

_LONGEST_SECONDS = 60.0


async def test_without_the_setting_there_is_no_page_and_with_it_one_on_loopback(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        prepare(server)
        server.create(node("n"))
        without, with_page = tmp_path / "without", tmp_path / "with"
        for folder in (without, with_page):
            folder.mkdir()
        async with extender(server, without) as found:
            assert "status page" not in found.process.log.read_text()
        async with extender(server, with_page, "--status-bind-address", "127.0.0.1:0") as found:
            line = await found.process.wait_for_line(r"status page is served on (http://\S+)", _LONGEST_SECONDS)
            async with found.http.get(line[1]) as response:
                assert "TopoGPU" in await response.text()
            async with found.http.get(f"{line[1]}events") as response:
                assert "n" in (await Follower(response).until("nodes"))["nodes"]
            await found.well()


async def test_an_address_that_is_not_loopback_gets_tls_and_asks_for_a_token(tmp_path: Path) -> None:
    """The address is this host's own, in a spelling that is not known as loopback."""
    async with EmbeddedApiServer() as server:
        prepare(server)
        server.create(node("n"))
        server.users["good"] = "ana"
        async with extender(server, tmp_path, "--status-bind-address", "127.1:0") as found:
            line = await found.process.wait_for_line(r"status page is served on (https://\S+)", _LONGEST_SECONDS)
            async with found.http.get(line[1]) as response:
                assert response.status == 200
            async with found.http.get(f"{line[1]}events") as response:
                assert response.status == 401
            async with found.http.get(f"{line[1]}events", headers={HEADER: "good"}) as response:
                assert "n" in (await Follower(response).until("nodes"))["nodes"]
            await found.well()


@pytest.mark.parametrize("address", [":9396", "0.0.0.0:9396", "[::]:9396", "10.0.0.1:9396", "example.com:9396"])
def test_an_open_address_without_a_certificate_is_refused(address: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--status-bind-address", address])
    assert result.exit_code == 2
    assert "is open to other hosts, so the page needs a certificate" in result.output
