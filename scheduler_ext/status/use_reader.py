"""Reads from the node daemons who really uses the GPUs (edge of the daemons).

It reads `/usage` of each daemon over the pod network, as Prometheus reads `/metrics`: through the API server it would
need the right to reach any port of any pod, and written on Nodes it would cost a write for each change. It reads only
while a browser is connected, and at most `READERS / PAUSE_SECONDS` daemons a second. Only pods of the extender's own
namespace with the daemon's labels are believed, and each only about the GPUs of its node.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import aiohttp

from proto.daemon_usage import (
    DAEMON_LABELS,
    DAEMON_PODS,
    LARGEST_USAGE_BYTES,
    USAGE_PATH,
    NodeUse,
    UsageUnreadable,
    decode_node_use,
)
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from scheduler_ext.status.view import Uses

READERS = 8
PAUSE_SECONDS = 0.4
"""The time between two readings of each reader."""
ROUND_SECONDS = 15.0
"""The least time between two readings of one daemon."""
ANSWER_SECONDS = 2.0
PAGE = 100
"""Pods of the daemons that are listed at once: few, because kube-scheduler waits meanwhile."""
_POLL_SECONDS = 0.5
_LABELS = ",".join(f"{name}={value}" for name, value in DAEMON_LABELS.items())


class UseReader:
    """Reads one daemon after the other, round after round, while `watched` returns True."""

    def __init__(
        self,
        *,
        api: ApiServer,
        namespace: str,
        watched: Callable[[], bool],
        monotonic: Callable[[], float],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """`namespace` is the daemons'; empty where it is not known."""
        self._api = api
        self._namespace = namespace
        self._watched = watched
        self._monotonic = monotonic
        self._pause_seconds = pause_seconds
        self._due = 0.0
        self._read: dict[str, NodeUse] = {}
        self._missing: dict[str, str] = {}
        self._problem = "" if namespace else "this extender does not know its namespace (POD_NAMESPACE)"

    def uses(self) -> Uses:
        return Uses(nodes=dict(self._read), problem=self._problem or self._why_missing())

    def _why_missing(self) -> str:
        if not self._missing:
            return ""
        node, why = min(self._missing.items())
        return f"{len(self._missing)} of {len(self._missing) + len(self._read)} daemons are not read; {node}: {why}"

    async def run(self) -> None:
        """Reads until cancelled."""
        while True:
            if self._namespace and self._watched() and self._monotonic() >= self._due:
                self._due = self._monotonic() + ROUND_SECONDS
                await self.round()
            await asyncio.sleep(_POLL_SECONDS)

    async def round(self) -> None:
        """Reads every daemon once."""
        try:
            daemons = await self._daemons()
        except (ApiError, ApiUnreachable) as error:
            self._problem = f"the pods of the daemons cannot be listed: {error}"
            return
        self._problem = "" if daemons else f"namespace {self._namespace} has no pod of a node daemon"
        for known in (self._read, self._missing):
            for node in known.keys() - daemons.keys():
                del known[node]
        left = iter(daemons.items())
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http, asyncio.TaskGroup() as readers:
            for _ in range(READERS):
                readers.create_task(self._each(http, left))

    async def _daemons(self) -> Mapping[str, str]:
        """Returns addresses by node; an empty one where no single pod is the daemon. Raises ApiError or
        ApiUnreachable.
        """
        found: dict[str, str] = {}
        token = ""
        while True:
            page = await self._api.list_page(
                DAEMON_PODS, namespace=self._namespace, limit=PAGE, continue_=token, label_selector=_LABELS
            )
            for pod in page.items:
                if pod.spec.node_name and pod.metadata.deletion_timestamp is None:
                    found[pod.spec.node_name] = "" if pod.spec.node_name in found else pod.address
            token = page.metadata.continue_
            if not token:
                return found

    async def _each(self, http: aiohttp.ClientSession, left: Iterator[tuple[str, str]]) -> None:
        for node, address in left:
            if not self._watched():
                return
            try:
                self._read[node] = await _read(http, node, address)
                self._missing.pop(node, None)
            except UsageUnreadable as error:
                self._read.pop(node, None)
                self._missing[node] = str(error)
            await asyncio.sleep(self._pause_seconds)


async def _read(http: aiohttp.ClientSession, node: str, address: str) -> NodeUse:
    """Raises UsageUnreadable."""
    if not address:
        raise UsageUnreadable("it has not exactly one pod of the daemon with an address and a port of metrics")
    try:
        async with http.get(f"http://{address}{USAGE_PATH}", allow_redirects=False) as answer:
            if answer.status != 200:
                raise UsageUnreadable(f"the daemon answers {answer.status}; is it of an older release?")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > LARGEST_USAGE_BYTES:
                    raise UsageUnreadable(f"the daemon's answer has more than {LARGEST_USAGE_BYTES >> 10} KiB")
    except TimeoutError as error:
        raise UsageUnreadable(f"the daemon does not answer within {ANSWER_SECONDS:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UsageUnreadable(f"the daemon does not answer: {error}") from error
    return decode_node_use(bytes(body), node)
