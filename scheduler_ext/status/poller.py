"""Polls the cluster for the status page, a little at a time, so that kube-scheduler does not notice."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from scheduler_ext.cluster.events import TimePassed
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.status.explaining import Explainer
from scheduler_ext.status.view import NodePoll, Poll, Standing, Uses
from scheduler_ext.verbs.live_cluster import LiveCluster

POLL_SECONDS = 0.5
"""The time between two polls while a browser is connected: what happens meanwhile is shown together."""
UNWATCHED_SECONDS = 10.0
"""The time between two polls otherwise, for the history."""
BREATH_SECONDS = 0.001
"""The time of work after which kube-scheduler gets its answers."""


class Poller:
    """Polls the cluster again and again. `show` takes each poll and returns whether it could; if not, the next poll
    has everything. `watched` returns whether a browser is connected.
    """

    def __init__(
        self,
        *,
        cluster: LiveCluster,
        explainer: Explainer,
        uses: Callable[[], Uses] = Uses,
        standing: Callable[[], Standing],
        show: Callable[[Poll], Awaitable[bool]],
        watched: Callable[[], bool],
        seconds_since_1970: Callable[[], float],
    ) -> None:
        self._live = cluster
        self._cluster = cluster.state
        self._explainer = explainer
        self._uses = uses
        self._standing = standing
        self._show = show
        self._watched = watched
        self._seconds_since_1970 = seconds_since_1970
        self._known: Mapping[str, NodeUsage] = {}
        self._last_happened = 0

    async def run(self) -> None:
        due = self._live.monotonic()
        while True:
            if self._watched() or self._live.monotonic() >= due:
                shown = False
                try:
                    shown = await self._show(await self.poll())
                finally:
                    if not shown:
                        self._known, self._last_happened = {}, 0
                due = self._live.monotonic() + UNWATCHED_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    async def poll(self) -> Poll:
        """Returns the findings of one poll. Nodes are read one by one: each is as it is at its own moment. Before the
        first lists are complete nothing is a finding: GPUs of pods that are not listed yet would look idle.
        """
        self._live.apply(TimePassed())
        standing = self._standing()
        if not standing.synced:
            return Poll(monotonic=self._live.monotonic(), at=self._seconds_since_1970(), standing=standing)
        nodes, now = await self._nodes(), self._live.monotonic()
        gone = tuple(name for name in self._known if name not in nodes)
        self._known = {name: self._known[name] if poll is None else poll.usage for name, poll in nodes.items()}
        happened = self._cluster.log.since(self._last_happened)
        self._last_happened = happened[-1].number if happened else self._last_happened
        waiting = await self._explainer.waiting() if self._watched() else ()
        return Poll(
            monotonic=now,
            at=self._seconds_since_1970(),
            standing=standing,
            nodes={name: poll for name, poll in nodes.items() if poll is not None},
            gone=gone,
            broken=self._cluster.ledger.nodes.broken(),
            waiting=waiting,
            waiting_total=len(self._cluster.waiting_pods()),
            fits=tuple(self._explainer.fits),
            uses=self._uses(),
            happened=tuple(happened),
        )

    async def _nodes(self) -> Mapping[str, NodePoll | None]:
        """Returns every node; None for one that is as before."""
        ledger, monotonic = self._cluster.ledger, self._live.monotonic
        found: dict[str, NodePoll | None] = {}
        began = monotonic()
        for name in tuple(ledger.nodes.usages()):
            usage = ledger.nodes.usages().get(name)
            if usage is not None:
                found[name] = None if usage is self._known.get(name) else self._node(name, usage)
            if monotonic() - began >= BREATH_SECONDS:
                await asyncio.sleep(0)
                began = monotonic()
        return found

    def _node(self, name: str, usage: NodeUsage) -> NodePoll | None:
        alone, names = self._cluster.ledger.alone(name), self._cluster.pods.names()
        if alone is None:
            return None
        pods = (*alone.held, *alone.kept)
        return NodePoll(
            usage=usage,
            alone=alone,
            names={uid: found for uid in pods if (found := names.get(uid)) is not None},
        )
