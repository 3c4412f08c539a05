"""Knows which pod holds which part of each GPU. It is the only such place, and each event updates it."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf
from sys import intern

from msgspec.structs import replace

from proto.annotations.errors import attempted
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving
from proto.devices import PodShares
from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, host_requested
from scheduler_ext.cluster.bound import OUTLIVING_SECONDS, read_bound, still_running
from scheduler_ext.cluster.closed_nodes import SetAsides
from scheduler_ext.cluster.groups import LONGEST_PERMIT_SECONDS, Groups, pending_of
from scheduler_ext.cluster.node_totals import HostSums, KubeletSums
from scheduler_ext.cluster.nodes import Nodes
from scheduler_ext.cluster.quotas import Quotas
from scheduler_ext.cluster.records import (
    NO_GPUS,
    NO_OTHERS,
    WAITING,
    Pending,
    PodRecord,
    Records,
    RecordState,
    decided_part,
    namespace_of,
)
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import TOTAL_EXCEEDED, Snapshot
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.kubelet_totals import NO_TOTALS, totals_of
from scheduler_ext.quota_class import quota_class
from scheduler_ext.requests import RequestSettings, container_kinds, pod_key
from scheduler_ext.workload import Classes, Workload, seeds

LATEST_NEWS_SECONDS = 600.0
"""How long a sent reservation stays at least once the watch of pods works again, which may have to catch up."""


@lru_cache(maxsize=65_536)
def _shared(amount: HostAmount) -> HostAmount:
    """Returns one object for all pods with the same request: there are many of them."""
    return amount


class Ledger:
    """The nodes, the records of what pods hold of them, and the sums that follow the records."""

    def __init__(self, settings: RequestSettings | None = None, *, fgd: bool = True) -> None:
        """With `fgd` it also counts what that policy reads: CPU and memory, and which pods usually come. Raises
        RequestError if the settings name usual pods that cannot be read.
        """
        self._settings, self._fgd = settings or RequestSettings(), fgd
        self._outliving: dict[str, Outliving] = {}
        """The last readable report of each node's daemon about pods that outlive their deletion."""
        self._watched_since = -inf
        """The time at which the watch of pods began to work; infinite while it does not."""
        self._classes = Classes(seeds(self._settings), self._settings)
        self.records = Records()
        self.set_asides = SetAsides(self._settings.names)
        self.groups = Groups(self.records)
        self.nodes = Nodes(self.records, self.set_asides, self._settings)
        self.quotas = Quotas(self._settings)
        self.kubelet = KubeletSums(self._settings, self.records, self.nodes)
        self.hosts = HostSums()
        self.records.feed(self.nodes, self.quotas, self.kubelet, self.hosts, self.groups)
        self._of_pods: tuple[SetAsides | Groups | Classes, ...] = self.set_asides, self.groups
        if fgd:
            self._of_pods = *self._of_pods, self._classes

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        current = {node.metadata.name: node for node in nodes}
        for name in {*self.nodes.unregistered(), *(node.name for node in self.nodes.registered())} - current.keys():
            self.remove_node(name)
        for node in current.values():
            self.apply_node(node)

    def apply_node(self, node: Node) -> None:
        name = node.metadata.name
        report, unread = attempted(decode_outliving, node.metadata.annotations.get(NODE_OUTLIVING))
        if report is not None:
            self._outliving[name] = report
        elif self._outliving.pop(name, None) is not None:
            self.records.forget_first_end()
        self._settle(name)
        self.nodes.apply(node, unread)
        self.hosts.apply(node)
        self.kubelet.apply(node)

    def remove_node(self, name: str) -> None:
        """Removes a node. Its pods keep what they hold, because the node may come back; deleted pods do not."""
        self._outliving.pop(name, None)
        for record in [*self.records.on_node(name).values()]:
            if record.state is RecordState.OUTLIVING:
                self.remove_pod(record.uid)
        self.nodes.remove(name)
        self.hosts.remove(name)
        self.kubelet.remove(name)

    def replace_pods(self, pods: Iterable[Pod], version: int = 0) -> None:
        """Replaces all pods. Reservations stay until they are forgotten or expire. `version` is that of the list: a
        restored API server gives versions again that it gave before.
        """
        current = {pod_key(pod): pod for pod in pods}
        for record in [*self.records.every().values(), *self.records.of(*WAITING)]:
            match record.state:
                case RecordState.OUTLIVING if 0 < version < record.deleted_at:
                    self.records.put(replace(record, deleted_at=version))
                case RecordState.SENT if record.uid not in current and 0 < record.pending.seen.version <= version:
                    # The pod is gone, and no watch will show what became of it: its reservation ends with its lease.
                    self.records.put(replace(record, state=RecordState.RESERVED, sent_by=0))
                case RecordState.BOUND | RecordState.LAPSED | RecordState.REJECTED if record.uid not in current:
                    self.records.drop(record)
        for part in self._of_pods:
            part.keep_only(current.keys())
        for pod in current.values():
            self.apply_pod(pod)
        self.settle()

    def settle(self) -> None:
        """Counts what node daemons report of deleted pods, once all other pods are applied."""
        for name in self._outliving:
            self._settle(name)

    def apply_pod(self, pod: Pod) -> None:
        """Adds or updates a pod. A bound one takes over from its reservation; an ended one holds nothing.

        A pod that kube-scheduler no longer means to bind loses its reservation, and its group loses theirs.
        """
        uid, known = pod_key(pod), self.records.bound(pod_key(pod))
        for part in self._of_pods:
            part.apply(pod)
        gpus = () if known is None else {device.uuid for device in self.nodes.devices(known.node)}
        record = read_bound(pod, self._settings.names, known, gpus)
        if record is not None:
            self.records.drop(self.records.kept(uid))
        if pod.has_ended:
            self.records.drop(self.records.get(uid))
        elif pod.spec.node_name:
            totals, host = totals_of(pod, self._settings), _shared(host_requested(pod)) if self._fgd else NO_HOST
            if record is None and totals is NO_TOTALS and host == NO_HOST:
                self.records.drop(self.records.get(uid))
            else:
                record = record or PodRecord(uid=uid, state=RecordState.BOUND, node=intern(pod.spec.node_name))
                self.records.put(replace(record, totals=totals, host=host))
        else:
            self.records.drop(known)

    def remove_pod(self, uid: str, until: float | None = None, *, deleted_at: int = 0, name: str = "") -> None:
        """Frees what the pod holds. With `until`, in monotonic seconds, it holds its part until its node's daemon
        reports that everything deleted up to that resourceVersion has ended, or until then if the daemon reports
        nothing. It then has this `name`.
        """
        for part in self._of_pods:
            part.remove(uid)
        known = self.records.bound(uid)
        if until is not None and known is not None and known.gpus is not NO_GPUS:
            self.records.put(known.outliving(until, deleted_at, name))
            self._settle(known.node)
            return
        self.records.drop(self.records.get(uid), self.records.kept(uid))

    def reserve(
        self,
        uid: str,
        pod: Pod,
        node: str,
        shares: PodShares,
        until: float,
        *,
        others: Mapping[str, PodShares] = NO_OTHERS,
        pending: Pending | None = None,
    ) -> None:
        """Holds `shares` for the pod until it is seen bound, dropped, or `until` passes, in place of an earlier
        reservation. `others` is held on further nodes until the bind names one.
        """
        known = self.records.bound(uid)
        # A pod that waits to be bound has not ended: what the daemon alone reports about it is wrong.
        if known is not None and (known.state is RecordState.BOUND or known.until < inf):
            return
        kinds = container_kinds(pod)
        self.records.put(
            PodRecord(
                uid=uid,
                state=RecordState.RESERVED,
                node=node,
                namespace=namespace_of(pod),
                quota_class=quota_class(pod),
                gpus=decided_part(kinds, shares, pod),
                others={name: decided_part(kinds, held, pod) for name, held in others.items()},
                decided={node: shares, **others},
                totals=totals_of(pod, self._settings),
                host=host_requested(pod),
                until=until,
                pending=pending or pending_of(pod, None),
            )
        )
        self.groups.count_reservation(uid)

    def choose(self, uid: str, node: str) -> PodShares | None:
        """Keeps the pod's reservation on this node only. Returns its shares there; None if it has nothing there."""
        record = self.records.reserved(uid)
        shares = None if record is None else record.decided.get(node)
        if record is not None and shares is not None and record.others:
            self.records.put(record.narrowed([node]))
            self.groups.settle(record.pending.group, node)
        return shares

    def watched(self, since: float) -> None:
        """The watch of pods works since then. If that is infinite it does not: what was sent stays until it shows."""
        self._watched_since = since
        self.records.forget_first_end()

    def expire(self, now: float) -> None:
        """Drops expired reservations, expired kept room and expired parts of deleted pods."""
        self.set_asides.now = now
        if now < self.records.first_end:
            return
        for record in self.records.of(RecordState.OUTLIVING):
            # Of a pod known only from the daemon the time begins with the daemon's silence.
            if record.until == inf and record.node not in self._outliving:
                self.records.put(replace(record, until=now + OUTLIVING_SECONDS))
        ended = [record for record in self.records.of(*RecordState) if self._ends_at(record) <= now]
        lapsed = self.groups.lapsed_of([record for record in ended if record.is_pending])
        for record in ended:
            if record.state is RecordState.OUTLIVING:
                self.remove_pod(record.uid)
            else:
                self.records.drop(record)
        self.records.put(*lapsed)
        self.records.first_end = min(map(self._ends_at, self.records.of(*RecordState)), default=inf)

    def _ends_at(self, record: PodRecord) -> float:
        if record.state in WAITING:
            return record.until + LONGEST_PERMIT_SECONDS
        if record.state is RecordState.SENT:
            return max(record.until, self._watched_since + LATEST_NEWS_SECONDS)
        return inf if record.state is RecordState.OUTLIVING and record.node in self._outliving else record.until

    def snapshot(self, excluding_uid: str = "") -> Snapshot:
        """Returns the cluster as it is now. What the pod `excluding_uid` itself holds does not count."""
        nodes = dict(self.nodes.usages())
        own = self.records.get(excluding_uid) or self.records.kept(excluding_uid)
        for node in own.nodes if own is not None else ():
            if (alone := self.alone(node)) is not None:
                nodes[node] = alone.usage({excluding_uid})
        return Snapshot(
            nodes=nodes,
            unregistered=dict(self.nodes.unregistered()),
            quotas=self.quotas.every(() if own is None else (own,)),
            hosts={name: room for name in nodes if (room := self.hosts.left(name, own)) is not None},
            workload=self.workload(),
        )

    def snapshot_for(self, pod: Pod) -> Snapshot:
        """Returns the cluster for a decision about this pod. Nodes whose kubelets would refuse it offer nothing, and
        neither do nodes to which it is not let: cordoned ones, those with taints, and those set aside for others.
        """
        snapshot = self.snapshot(pod_key(pod))
        crowded = self.kubelet.refusing(pod, list(snapshot.nodes))
        reasons = {name: f"{TOTAL_EXCEEDED}({resource})" for name, resource in crowded.items()}
        closed = self.set_asides.closed_to(pod)
        return snapshot.without({**closed, **reasons, **self.nodes.repelling(pod.spec.tolerations)})

    def alone(self, node: str, namespace: str = "") -> NodeAlone | None:
        """Returns the node and the namespace's quotas as they are now; None for a node that is not registered."""
        return self.nodes.alone(node, self.quotas.alone(namespace))

    def workload(self) -> Workload:
        """Returns the pods that usually come: the same object until enough pods have come to count again."""
        return self._classes.workload(self.nodes.registered())

    def problems(self) -> Mapping[str, str]:
        """Returns why nodes, pods and quotas cannot be read, by `node a`, `pod UID` or `resourcequota ns/q`."""
        nodes = {f"node {name}": why for name, why in self.nodes.unregistered().items() if why != UNREGISTERED}
        pods = {f"pod {uid}": problem for uid, problem in self.records.problems().items()}
        return {**nodes, **pods, **self.quotas.problems()}

    def _settle(self, node: str) -> None:
        """Frees what ended pods hold there, and counts deleted pods that still run, as the node's daemon reports."""
        if (report := self._outliving.get(node)) is None:
            return
        for record in [*self.records.on_node(node).values()]:
            if record.state is RecordState.OUTLIVING and report.has_ended(record.uid, record.deleted_at):
                self.remove_pod(record.uid)
        for reported in still_running(node, report):
            known = self.records.get(reported.uid)
            if known is None or (known.is_pending and known.nodes == reported.nodes):
                self.records.put(reported)
