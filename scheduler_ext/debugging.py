"""What the extender sees and thinks, for people: the snapshot to replay, and why a pod is where it is."""

import asyncio
from collections.abc import Callable
from datetime import datetime

import msgspec

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import NotFound
from proto.kubernetes.objects import PODS, Pod
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.scheduling.account import Account, account
from scheduler_ext.scheduling.journal import Journal


class NoSuchPod(Exception):
    """The message is one sentence."""


class Debugging:
    """Reads and changes nothing. `requests` are the cluster's names and defaults.

    What takes long is done on another thread, on values that do not change: kube-scheduler is answered meanwhile.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        ledger: Ledger,
        journal: Journal,
        requests: RequestSettings,
        problem: Callable[[], str],
        now: Callable[[], datetime],
    ) -> None:
        """`problem` says why nothing can be decided here now, if so."""
        self._api = api
        self._ledger = ledger
        self._journal = journal
        self._requests = requests
        self._problem = problem
        self._now = now

    async def snapshot(self, excluding_uid: str = "") -> bytes:
        """What a decision is taken on, as `decide --snapshot` reads it."""
        return await asyncio.to_thread(encode_snapshot, self._ledger.snapshot(excluding_uid))

    async def explain(self, namespace: str, name: str) -> Account:
        """Raises NoSuchPod, ApiError or ApiUnreachable."""
        try:
            pod = await self._api.get(PODS, name, namespace)
        except NotFound as error:
            raise NoSuchPod(f"there is no pod {namespace}/{name}") from error
        request, unreadable = self._request(pod)
        snapshot = self._ledger.snapshot(pod_key(pod))
        return await asyncio.to_thread(
            account,
            pod,
            request,
            unreadable if request is None else self._problem(),
            snapshot,
            self._journal.find(pod_key(pod)),
            now=self._now().timestamp(),
        )

    def _request(self, pod: Pod) -> tuple[GpuRequest | None, str]:
        try:
            return read_request(pod, self._requests), ""
        except RequestError as error:
            return None, str(error)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Node by node: while the library encodes, no other thread gets on."""
    encode = msgspec.json.Encoder().encode
    nodes = b",".join(encode(name) + b":" + encode(usage) for name, usage in snapshot.nodes.items())
    rest = encode({"unregistered": snapshot.unregistered, "quotas": snapshot.quotas})
    return b'{"nodes":{' + nodes + b"}," + rest.removeprefix(b"{")
