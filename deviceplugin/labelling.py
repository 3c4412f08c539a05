"""Keeps the Node's labels about its GPUs up to date, unless another program writes them."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.gpus import Gpus
from deviceplugin.labels import LabelReport, label_report, left_to_others
from deviceplugin.report import Report
from deviceplugin.reporter import Reporter
from proto.kubernetes.events import EventRecorder


class NodeLabels:
    """Writes the labels; if it is not enabled, it removes those of an earlier daemon."""

    def __init__(
        self,
        own: OwnNode,
        gpus: Gpus,
        changes: Changes,
        events: EventRecorder,
        *,
        enabled: bool,
        now: Callable[[], datetime],
    ) -> None:
        self._own = own
        self._gpus = gpus
        self._changes = changes
        self._events = events
        self._enabled = enabled
        self._reporter = Reporter(
            lambda: f"the feature labels of node {own.name}",
            changes,
            due=lambda _now, _last: Report(body=self._look().body),
            write=own.patch_node,
            now=now,
        )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reporter.run())
            group.create_task(self._tell())

    async def _tell(self) -> None:
        async for others in self._changes.of(lambda: self._look().others):
            if others:
                self._events.record(self._own.reference(), left_to_others(others))

    def _look(self) -> LabelReport:
        """Returns the patch that is due; None until the Node and the GPUs are known."""
        node, wanted = self._own.node, self._wanted()
        return LabelReport() if node is None or wanted is None else label_report(node, wanted)

    def _wanted(self) -> Mapping[str, str] | None:
        return self._gpus.inventory.labels if self._enabled else {}
