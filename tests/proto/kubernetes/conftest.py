from collections.abc import AsyncIterator

import pytest

from proto.kubernetes.client import ApiServer
from tests.proto.kubernetes.scripted_server import Scripted, connected, scripted_server


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    async with scripted_server() as scripted:
        yield scripted


@pytest.fixture
async def api(server: Scripted) -> AsyncIterator[ApiServer]:
    async with connected(server) as client:
        yield client
