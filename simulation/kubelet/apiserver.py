"""The writes a kubelet makes: its Node, statuses, events, and the final delete of a pod that has stopped."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp

from proto.kubernetes.objects import EVENTS, NODES, PODS, Pod

Json = Mapping[str, object]
_MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}


class StatusNotWritten(Exception):
    """The API server did not take a write; the text names it and the reason."""


class NodeApi:
    """Writes of the node called `node_name`, to the API server at `url`."""

    def __init__(self, url: str, node_name: str) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(headers={"User-Agent": f"kubelet/{node_name}"})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def register_node(self, node: Json, name: str) -> None:
        """Creates the Node, or keeps the one that is there."""
        await self._send("POST", NODES.path(), node, accepted=(409,))
        await self.patch_node_status(name, {"status": node["status"]})

    async def patch_node_status(self, name: str, body: Json) -> None:
        await self._send("PATCH", NODES.path(name=name, subresource="status"), body)

    async def patch_pod_status(self, pod: Pod, status: Json) -> None:
        """A pod that is gone meanwhile needs no status."""
        path = PODS.path(pod.metadata.namespace, pod.metadata.name, "status")
        await self._send("PATCH", path, {"status": status}, accepted=(404,))

    async def finish_deletion(self, pod: Pod) -> None:
        """Another pod may have the name by now."""
        path = PODS.path(pod.metadata.namespace, pod.metadata.name)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        try:
            await self._send("DELETE", path, options, accepted=(404,))
        except StatusNotWritten as refusal:
            if "Precondition failed" not in str(refusal):
                raise

    async def record_event(self, namespace: str, event: Json) -> None:
        await self._send("POST", EVENTS.path(namespace), event)

    async def _send(self, method: str, path: str, body: Json, accepted: tuple[int, ...] = ()) -> None:
        headers = _MERGE_PATCH if method == "PATCH" else None
        try:
            async with self._session.request(method, self._url + path, json=body, headers=headers) as answer:
                if answer.status >= 400 and answer.status not in accepted:
                    raise StatusNotWritten(f"{method} {path}: {answer.status} {await answer.text()}")
        except (aiohttp.ClientError, OSError) as error:
            raise StatusNotWritten(f"{method} {path}: {error}") from error
