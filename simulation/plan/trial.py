"""Changes of a cluster that are tried, and taken back."""

from collections.abc import Collection
from dataclasses import dataclass, field

from proto.kubernetes.objects import Pod
from scheduler_ext.requests import pod_key
from simulation.plan.engine import Engine, Placed, PlanRefusal
from simulation.plan.objects import Arrival


@dataclass(slots=True)
class PlanTrial:
    """A trial on one cluster. `done` is the number of changes so far."""

    engine: Engine
    _changes: list[str | Pod] = field(default_factory=list)
    """The UID of a pod that was placed, or a pod that was taken away, in the order of time."""

    @property
    def done(self) -> int:
        return len(self._changes)

    @property
    def moved(self) -> frozenset[str]:
        """Returns the UIDs of the pods that were taken away, or placed."""
        return frozenset(each if isinstance(each, str) else pod_key(each) for each in self._changes)

    def end(self, uid: str) -> Pod:
        """Takes the pod away and returns it."""
        pod = self.engine.end(uid, 0.0)
        self._changes.append(pod)
        return pod

    def place(self, arrival: Arrival, uid: str, only: Collection[str] | None = None) -> Placed | PlanRefusal:
        found = self.engine.place(arrival, uid, 0.0, only=only)
        if isinstance(found, Placed):
            self._changes.append(uid)
        return found

    def undo(self, until: int = 0) -> None:
        """Takes the changes back that were made after the first `until`."""
        while self.done > until:
            change = self._changes.pop()
            if isinstance(change, str):
                self.engine.end(change, 0.0)
            else:
                self.engine.put_back(change, 0.0)
