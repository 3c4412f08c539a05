"""TokenAccess before an embedded API server, with a clock that tests move."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile

from proto.kubernetes.client import ApiServer
from scheduler_ext.status.access import TokenAccess
from simulation.apiserver import EmbeddedApiServer


@dataclass
class Asking:
    server: EmbeddedApiServer
    api: ApiServer
    now: float = 100.0

    def __post_init__(self) -> None:
        self.access = TokenAccess(self.api, lambda: self.now)

    def reviews(self) -> list[str]:
        """The paths of the TokenReviews that were asked for."""
        return [request.path for request in self.server.requests if request.path.endswith("/tokenreviews")]


@asynccontextmanager
async def asking(server: EmbeddedApiServer) -> AsyncIterator[Asking]:
    with NamedTemporaryFile("w") as kubeconfig:
        kubeconfig.write(server.kubeconfig())
        kubeconfig.flush()
        api = await ApiServer.connect(kubeconfig.name, timeout_seconds=5.0)
    try:
        yield Asking(server, api)
    finally:
        await api.close()
