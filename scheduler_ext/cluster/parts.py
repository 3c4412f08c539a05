"""The parts of the cluster's state, each with its own file."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from proto.kubernetes.objects import Notice, ObjectReference, Pod
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.closed_nodes import KubeletRefusals
from scheduler_ext.cluster.events import RecordEvent
from scheduler_ext.cluster.gangs import Gang, Gangs
from scheduler_ext.cluster.history import Histories, PodLog
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.pod_index import PodIndex, PodName
from scheduler_ext.cluster.resizing import Wishes
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.cluster.waiting_pods import Nominations, PodQueue
from scheduler_ext.requests import RequestSettings


class Complaints:
    """Reports what is wrong with each object: once, and again when that changes."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._known: dict[str, str] = {}

    def update(self, key: str, problem: str, subject: Callable[[], ObjectReference]) -> Sequence[RecordEvent]:
        """`problem` is empty for an object that can be read."""
        if not problem:
            self.drop(key)
        elif self._known.get(key) != problem:
            self._known[key] = problem
            return (RecordEvent(subject(), Notice(reason=self._reason, message=problem, distinct=True)),)
        return ()

    def drop(self, key: str) -> None:
        self._known.pop(key, None)

    def keep_only(self, keys: Collection[str]) -> None:
        for key in self._known.keys() - keys:
            self.drop(key)


class ClusterParts:
    """Read them freely. Only the handlers of events change them."""

    def __init__(self, requests: RequestSettings | None = None) -> None:
        self.requests = requests or RequestSettings()
        self.ledger = Ledger(self.requests)
        self.pods = PodIndex(self.requests.names)
        self.gangs = Gangs()
        self.budgets = Budgets()
        self.nominations = Nominations()
        self.queue = PodQueue()
        self.wishes = Wishes()
        self.refusals = KubeletRefusals()
        self.history = Histories()
        self.log = PodLog()
        self.departed: Mapping[str, PodName] = {}
        """The names of deleted pods that still hold GPUs, by UID, as far as they were seen."""
        self.unreadable_nodes = Complaints("UnreadableRegistration")
        self.unreadable_pods = Complaints("UnreadableAllocation")

    def waiting_pods(self) -> Mapping[str, Pod]:
        """Returns the pods, by UID, that request GPUs, and for which no node is decided."""
        reserved = self.ledger.records.reserved
        return {uid: pod for uid, pod in self.pods.pending().items() if reserved(uid) is None}

    def closed_to(self, pod: Pod) -> Mapping[str, str]:
        """Returns the nodes that are set aside for others or whose kubelets refused such a pod, with the reason."""
        return {**self.ledger.set_asides.closed_to(pod, self.budgets), **self.refusals.closed_to(pod)}

    def snapshot_for(self, pod: Pod) -> Snapshot:
        """Returns the cluster for a decision about this pod; nodes that are closed to it offer nothing."""
        return self.ledger.snapshot_for(pod).without(self.refusals.closed_to(pod))

    def gang_of(self, pod: Pod) -> Gang | None:
        """Returns the group of the pod, if its pods start together and their number is known."""
        return self.gangs.of(pod, self.pods.pending())

    def departs(self, uid: str, name: PodName) -> None:
        """Remembers the name of a deleted pod while it holds GPUs."""
        still = {each: known for each, known in self.departed.items() if self.ledger.records.bound(each) is not None}
        self.departed = still if self.ledger.records.bound(uid) is None else {**still, uid: name}

    def end_nominations(self, uids: Iterable[str]) -> None:
        for uid in uids:
            if self.nominations.end(uid):
                self.ledger.records.give_up(uid)
