"""Pods that the API server has deleted though their containers may still run. They hold their GPUs until their node's
daemon reports their end. Where the daemon reports nothing (HAMi's, or one that does not see the host's control groups)
they hold them for a time.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from proto.annotations.errors import readable
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving
from proto.kubernetes.objects import Node
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.records import GpuPart, PodRecord, RecordState

OUTLIVING_SECONDS = 120.0
"""How long a pod deleted by force keeps its GPUs if the node's daemon does not report the end of its containers.

kubelet then kills them with their grace period, 30 s unless the pod names another.
"""


@dataclass(slots=True)
class OutlivingReports:
    """The last report of each node's daemon about pods that outlive their deletion."""

    _reports: dict[str, Outliving] = field(default_factory=dict)

    def __contains__(self, node: str) -> bool:
        return node in self._reports

    def nodes(self) -> Collection[str]:
        """Returns the nodes whose daemons report something."""
        return tuple(self._reports)

    def read(self, node: Node) -> bool:
        """Records the report of the node's daemon. An unreadable report counts as none. Returns whether the daemon
        reports nothing any more.
        """
        name = node.metadata.name
        report = readable(decode_outliving, node.metadata.annotations.get(NODE_OUTLIVING))
        if report is None:
            return self.forget(name)
        self._reports[name] = report
        return False

    def forget(self, node: str) -> bool:
        return self._reports.pop(node, None) is not None

    def has_ended(self, record: PodRecord) -> bool:
        """Returns whether the daemon of the pod's node reports that nothing of it runs any more."""
        report = self._reports.get(record.node)
        return report is not None and report.has_ended(record.uid, record.deleted_at)

    def running(self, node: str) -> Iterator[PodRecord]:
        """Yields what pods hold that still run after their deletion, as the node's daemon reports it."""
        report = self._reports.get(node)
        for uid, held in report.pods.items() if report is not None else ():
            if held:
                footprints = {gpu: Footprint(*amounts) for gpu, amounts in held.items()}
                part = GpuPart(footprints=footprints, pod=report.names.get(uid, "") if report is not None else "")
                yield PodRecord(uid=uid, state=RecordState.OUTLIVING, node=node, gpus=part)
