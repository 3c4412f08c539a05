"""Pods that come and go before the extender's own decisions, in simulated time: kube-scheduler, kubelet and the API
server answer at once.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from proto.annotations.keys import DEVICES_ALLOCATED, SET_ASIDE
from proto.annotations.pod_devices import encode_pod_devices
from proto.annotations.set_aside import SetAside, encode_set_aside
from proto.annotations.unhealthy_since import stamp
from proto.extender import FilterResult
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.events import Applied, BackfillAllowed, Listed, Removed, Wake, unperformed
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.effort import finished
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.setting_aside import newly_set_aside
from scheduler_ext.requests import RequestSettings, pod_key, read_request
from scheduler_ext.verbs.filter_decision import FilterDecision
from scheduler_ext.verbs.waiting_jobs import WaitingJobs, ended

BEGINNING = 1_900_000_000.0
"""Seconds since 1970, and the monotonic time as well."""
LEASE_SECONDS = 60.0


class JobStream:
    """`after` is the time of waiting after which a node is set aside; 0 never sets one aside."""

    def __init__(self, nodes: Sequence[Node], settings: RequestSettings | None = None, *, after: float = 0.0) -> None:
        self.now = BEGINNING
        self.cluster = Cluster(settings)
        self.nodes = [node.metadata.name for node in nodes]
        self.cluster.step(Listed(Node, nodes), self.now, unperformed(Wake))
        index = NodeIndex(self.cluster.ledger, least_most_effort=1 << 40)
        self._decision = FilterDecision(index, self.cluster, LEASE_SECONDS)
        self._after = after
        self.jobs = WaitingJobs(self.cluster, after)
        self.pods: dict[str, Pod] = {}

    def come(self, pod: Pod) -> str:
        """Returns the key of a pod that is created now."""
        created = stamp(datetime.fromtimestamp(self.now, UTC))
        self.show(replace(pod, metadata=replace(pod.metadata, creation_timestamp=created)))
        return pod_key(pod)

    def leave(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        ended_pod = replace(pod, status=replace(pod.status, phase="Succeeded"))
        self.cluster.step(Applied(ended_pod), self.now, unperformed(Wake))
        self.cluster.step(Removed(ended_pod), self.now, unperformed(Wake))

    def answer(self, uid: str, offered: Sequence[str] | None = None) -> FilterResult:
        """The answer of `/filter`."""
        pod, nodes = self.pods[uid], self.nodes if offered is None else offered
        request = read_request(pod, self.cluster.requests)
        assert request is not None
        result = self._decision.reserve(pod, request, nodes, self.now).result
        if not result.node_names:
            self.jobs.refused(pod, request, result.failed_nodes or ())
        return result

    def place(self, uid: str, offered: Sequence[str] | None = None, *, starts_in: float = 0.0) -> str:
        """Asks about the pod, and binds it to the node; empty if it has to wait. Kubelet starts it later."""
        nodes = self.answer(uid, offered).node_names
        if not nodes:
            return ""
        reserved = self.cluster.ledger.records.reserved(uid)
        assert reserved is not None
        self._start(self.pods[uid], nodes[0], encode_pod_devices(reserved.shares), starts_in)
        return nodes[0]

    def _start(self, pod: Pod, node: str, devices: str, starts_in: float) -> None:
        started = stamp(datetime.fromtimestamp(self.now + starts_in, UTC))
        annotations = {**pod.metadata.annotations, DEVICES_ALLOCATED: devices}
        self.show(
            replace(
                pod,
                metadata=replace(pod.metadata, annotations=annotations),
                spec=replace(pod.spec, node_name=node),
                status=replace(pod.status, phase="Running", start_time=started),
            )
        )

    def turn(self) -> Mapping[str, SetAside]:
        """One turn of the replica that leads. Returns what it has set aside."""
        backfill_until = self.jobs.backfill_until(self.now, self.now)
        self.cluster.apply(BackfillAllowed(backfill_until), self.now)
        asides = self.cluster.ledger.set_asides
        for uid, why in self.jobs.over(self.now).items():
            self._annotate(uid, ended(asides.every()[uid].aside, self.now, why))
        due = finished(self.jobs.due(self.now))
        nodes = finished(self.jobs.nodes(self.now)) if due else {}
        search = newly_set_aside(due, nodes, frozenset(asides.nodes()), now=self.now, after=self._after)
        self.jobs.searched(due, search, self.now)
        for uid, aside in search.asides.items():
            self._annotate(uid, aside)
        return search.asides

    def _annotate(self, uid: str, aside: SetAside) -> None:
        pod = self.pods[uid]
        annotations = {**pod.metadata.annotations, SET_ASIDE: encode_set_aside(aside)}
        self.show(replace(pod, metadata=replace(pod.metadata, annotations=annotations)))

    def show(self, pod: Pod) -> None:
        self.pods[pod_key(pod)] = pod
        self.cluster.step(Applied(pod), self.now, unperformed(Wake))
