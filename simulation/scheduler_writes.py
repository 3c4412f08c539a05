"""Writes what a scheduler writes to the API server: bindings, and conditions and events of pods."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

import aiohttp

from proto.kubernetes.objects import POD_SCHEDULED
from simulation.extender_calls import CallRefused, JsonObject

_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
_log = logging.getLogger(__name__)


class SchedulerWrites:
    """The writes of one scheduler, or of one that stands in for several."""

    def __init__(self, url: str, http: Callable[[], aiohttp.ClientSession]) -> None:
        self._url = url
        self._http = http

    async def binding(self, metadata: JsonObject, node: str) -> None:
        own = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": own, "target": {"kind": "Node", "name": node}}
        try:
            async with self._http().post(f"{self._pod_url(metadata)}/binding", json=body) as response:
                if response.status >= 300:
                    raise CallRefused((await response.json()).get("message", f"status {response.status}"))
        except (aiohttp.ClientError, TimeoutError) as e:
            raise CallRefused(f"the API server did not answer the binding: {e}") from e

    async def condition(self, pod: JsonObject, reason: str, message: str) -> None:
        condition = {"type": POD_SCHEDULED, "status": "False", "reason": reason, "message": message}
        known = (pod.get("status") or {}).get("conditions") or []
        if any(all(one.get(key) == value for key, value in condition.items()) for one in known):
            return
        condition["lastTransitionTime"] = _now()
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [condition]}}
        await self._write("patch", f"{self._pod_url(pod['metadata'])}/status", body)

    async def event(self, pod: JsonObject, kind: str, reason: str, message: str) -> None:
        metadata, at = pod["metadata"], _now()
        involved = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod"} | involved,
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": pod["spec"]["schedulerName"]},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        await self._write("post", f"{self._url}/api/v1/namespaces/{metadata['namespace']}/events", body)

    async def _write(self, method: str, url: str, body: JsonObject) -> None:
        """Writes with best effort: a pod that is gone meanwhile or an API server that is away is only logged."""
        headers = _STRATEGIC if method == "patch" else {}
        try:
            async with self._http().request(method, url, json=body, headers=headers) as response:
                if response.status >= 300:
                    _log.info("%s %s was answered %d", method, url, response.status)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as e:
            _log.info("%s %s failed: %s", method, url, e)

    def _pod_url(self, metadata: JsonObject) -> str:
        return f"{self._url}/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _now() -> str:
    now = datetime.now(UTC)  # noqa: TID251 - the stand-in's clock
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
