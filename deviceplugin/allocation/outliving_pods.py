"""Finds pods that still run although the API server no longer has them, and writes them on the Node."""

from dataclasses import replace
from datetime import datetime, timedelta

from deviceplugin.allocation.capacity import Holds, held_by
from deviceplugin.allocation.outliving import (
    Departures,
    after_look,
    after_pods,
    first,
    outliving_report,
    read_outliving,
)
from deviceplugin.apiserver import OwnNode
from deviceplugin.gpus import Gpus
from deviceplugin.pod_cgroups import PodCgroups
from deviceplugin.report import Report
from proto.kubernetes.objects import Pod

_UNSEEN = timedelta(seconds=30)
"""Between looks for the host's control groups."""
_STOPPING = timedelta(seconds=1)
"""Between looks whether the containers of deleted pods have ended."""


class OutlivingPods:
    def __init__(self, own: OwnNode, gpus: Gpus, cgroups: PodCgroups, resource: str) -> None:
        self._own = own
        self._gpus = gpus
        self._cgroups = cgroups
        self._resource = resource
        self._departures: Departures | None = None
        """None until the control groups were seen once."""

    def due(self, now: datetime, _last: datetime | None) -> Report:
        """Writes nothing on a node whose control groups are not visible."""
        node, own = self._own.node, self._own
        if node is None or not own.pods_known or not self._gpus.known:
            return Report()
        if self._departures is None:
            known = first(own.pods, own.pods_version, read_outliving(node))
        else:
            known = after_pods(self._departures, own.pods, own.pods_version, self._held_by)
        if known.is_due:
            running = self._cgroups.populated(own.pods.keys())
            if running is None:
                return replace(outliving_report(node, None), look_again=now + _UNSEEN)
            known = after_look(known, running)
        self._departures = known
        report = outliving_report(node, known)
        return replace(report, look_again=now + _STOPPING) if known.is_due else report

    def _held_by(self, pod: Pod) -> Holds:
        return held_by(pod, self._gpus.by_uuid(), self._resource)
