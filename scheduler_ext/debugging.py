"""Shows people the extender's state: the snapshot to replay, and why a pod is where it is."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, NotFound
from proto.kubernetes.objects import PODS, Pod
from scheduler_ext.capacity.account import Account, account
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.http.messages import HttpAnswer, HttpRequest, Routes, text_answer
from scheduler_ext.requests import pod_key


class NoSuchPod(Exception):
    """There is no such pod. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debugging:
    """Reads only; changes nothing. Long work runs on another thread, on values that do not change, so kube-scheduler
    gets its answers meanwhile. `problem` returns why no decision is possible here now; empty if one is.
    """

    api: ApiServer
    cluster: Cluster
    problem: Callable[[], str]
    monotonic: Callable[[], float]

    def routes(self) -> Routes:
        return {"/debug/snapshot": {"GET": self._snapshot}, "/debug/explain": {"GET": self._explain}}

    async def _snapshot(self, message: HttpRequest) -> HttpAnswer:
        """Answers with the state on which decisions are taken, as `decide --snapshot` reads it."""
        snapshot = self.cluster.ledger.snapshot(message.query.get("excluding", ""))
        return HttpAnswer(await asyncio.to_thread(encode_snapshot, snapshot))

    async def _explain(self, message: HttpRequest) -> HttpAnswer:
        name, namespace = message.query.get("pod", ""), message.query.get("namespace", "default")
        if not name:
            return text_answer("name a pod: /debug/explain?pod=NAME&namespace=NAMESPACE", 400)
        try:
            return HttpAnswer(msgspec.json.encode(await self.explain(namespace, name)))
        except NoSuchPod as error:
            return text_answer(str(error), 404)
        except (ApiError, ApiUnreachable) as error:
            return text_answer(str(error), 502)

    async def explain(self, namespace: str, name: str) -> Account:
        """Returns an account of a pod. Raises NoSuchPod, ApiError or ApiUnreachable."""
        try:
            pod = await self.api.get(PODS, name, namespace)
        except NotFound as error:
            raise NoSuchPod(f"there is no pod {namespace}/{name}") from error
        snapshot = self.cluster.snapshot_for(pod)
        return await account_of(pod, snapshot, self.cluster, self.problem(), self.monotonic())


async def account_of(pod: Pod, snapshot: Snapshot, cluster: Cluster, problem: str, now: float) -> Account:
    """Returns the account of a pod that another thread makes. `snapshot` is that for a decision about the pod."""
    history, gang = cluster.history.of(pod_key(pod)), cluster.gang_of(pod)
    return await asyncio.to_thread(account, pod, cluster.requests, problem, snapshot, history, now=now, gang=gang)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encodes node by node: other threads cannot run while the library encodes."""
    encode = msgspec.json.Encoder().encode
    nodes = b",".join(encode(name) + b":" + encode(usage) for name, usage in snapshot.nodes.items())
    rest = encode(
        {
            "unregistered": snapshot.unregistered,
            "quotas": snapshot.quotas,
            "hosts": snapshot.hosts,
            "workload": snapshot.workload,
        }
    )
    return b'{"nodes":{' + nodes + b"}," + rest.removeprefix(b"{")
