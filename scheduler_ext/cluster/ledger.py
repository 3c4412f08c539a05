"""Knows which pod holds which part of which GPU. It is the only such place, and each event updates it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from proto.devices import DeviceUUID, PodShares
from proto.kubernetes.objects import Node, Pod, ResourceQuota
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.alone import NodeAlone
from scheduler_ext.cluster.booked import Bookings
from scheduler_ext.cluster.holdings import Holding, read_holding, reserved_holding
from scheduler_ext.cluster.kept import KeptRoom, KeptRooms
from scheduler_ext.cluster.nodes import Nodes
from scheduler_ext.cluster.orphans import Orphans
from scheduler_ext.cluster.packing_facts import PackingFacts
from scheduler_ext.cluster.quotas import Quotas
from scheduler_ext.cluster.reservations import NO_OTHERS, Reservation, Reservations, group_of, verdict_of, waits_of
from scheduler_ext.cluster.snapshot import TOTAL_EXCEEDED, NodeUsage, Quota, Snapshot, quota_for
from scheduler_ext.cluster.workload import Workload
from scheduler_ext.quota_class import QuotaClass
from scheduler_ext.requests import GpuRequest, RequestSettings, pod_key


class Ledger:
    """Nodes, the holdings of bound pods, reservations and quotas.

    The usage of a node and of a namespace is the sum of their holdings. Each event changes it.
    """

    def __init__(self, settings: RequestSettings | None = None, *, fgd: bool = True) -> None:
        """With `fgd` it also counts what that policy reads: CPU and memory, and which pods usually come."""
        self._settings = settings or RequestSettings()
        self._fgd = fgd
        self._bound: dict[str, Holding] = {}
        self._reserved: dict[str, tuple[Holding, ...]] = {}
        """The holdings of reservations by pod UID, on the chosen node first."""
        self._reservations = Reservations()
        self._booked = Bookings(self._settings.names)
        self._packing = PackingFacts(self._settings)
        self._orphans = Orphans()
        """Deleted pods that still count."""
        self._kept = KeptRooms()
        """Kept room counts for nodes, not for quotas, and not while its pod is bound or holds a reservation."""
        self._nodes = Nodes(self._kept, self._reserved)
        """The sums of what bound pods and reservations hold."""
        self._quotas = Quotas(self._settings)

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        current = {node.metadata.name: node for node in nodes}
        for name in self._nodes.names() - current.keys():
            self.remove_node(name)
        for node in current.values():
            self.apply_node(node)

    def apply_node(self, node: Node) -> None:
        name = node.metadata.name
        self._orphans.heard(node)
        self._settle(name)
        self._booked.forget(name)
        self._packing.apply_node(node)
        registered = self._nodes.apply(node, self._settings.names.count)
        if registered is not None:
            self._booked.tell(node, registered.devices)

    def remove_node(self, name: str) -> None:
        """Removes a node. Its pods keep what they hold, because the node may come back; deleted pods do not."""
        for uid in self._orphans.forget(name):
            self.remove_pod(uid)
        self._packing.remove_node(name)
        self._nodes.remove(name)

    def replace_pods(self, pods: Iterable[Pod], version: int = 0) -> None:
        """Replaces all pods. Reservations stay until they are forgotten or expire. `version` is that of the list."""
        self._orphans.listed(version)
        current = {pod_key(pod): pod for pod in pods}
        for uid in self._bound.keys() - current.keys() - self._orphans.uids():
            self._unbind(uid)
        self._booked.keep_only(current.keys())
        self._packing.keep_only(current.keys())
        self._reservations.keep_only(current.keys(), version)
        for pod in current.values():
            self.apply_pod(pod)
        for name in self._orphans.nodes():
            self._settle(name)

    def apply_pod(self, pod: Pod) -> None:
        """Adds or updates a pod. A bound one takes over from its reservation; an ended one holds nothing.

        A pod that kube-scheduler no longer means to bind loses its reservation, and its group loses theirs.
        """
        uid = pod_key(pod)
        self._orphans.drop(uid)
        self._booked.bind(uid, pod)
        if self._fgd:
            self._packing.apply_pod(uid, pod)
        known = self._bound.get(uid)
        gpus = frozenset[DeviceUUID]() if known is None else self._nodes.gpus(known.node)
        holding = read_holding(pod, self._settings.names, known, gpus)
        if holding is None:
            self._unbind(uid)
            if pod.has_ended:
                self.forget(uid)
                self._reservations.settled(uid)
            elif not pod.spec.node_name:
                for void in self._reservations.told(uid, pod):
                    self.forget(void)
            return
        self.forget(uid)
        self._reservations.settled(uid)
        self.give_up(uid)
        if self._bound.get(uid) != holding:
            self._unbind(uid)
            self._bound[uid] = holding
            self._add(uid, holding)

    def remove_pod(self, uid: str, until: float | None = None, *, deleted_at: int = 0) -> None:
        """Frees what the pod holds. With `until`, in monotonic seconds, it holds its part until its node's daemon
        reports that everything deleted up to that resourceVersion has ended, or until then if the daemon reports
        nothing.
        """
        self._booked.unbind(uid)
        self._packing.remove_pod(uid)
        if until is not None and uid in self._bound:
            self._orphans.add(uid, self._bound[uid].node, deleted_at, until)
            self._settle(self._bound[uid].node)
            return
        self._orphans.drop(uid)
        self._unbind(uid)
        self.forget(uid)
        self._reservations.settled(uid)
        self.give_up(uid)

    def replace_quotas(self, quotas: Iterable[ResourceQuota]) -> None:
        self._quotas.replace(quotas)

    def apply_quota(self, quota: ResourceQuota) -> None:
        self._quotas.apply(quota)

    def remove_quota(self, quota: ResourceQuota) -> None:
        self._quotas.remove(quota)

    def ask(self, pod: Pod) -> None:
        """Drops the reservations that kube-scheduler has given up, as its question about this pod shows."""
        for void in self._reservations.asked_about(pod_key(pod), group_of(pod)):
            self.forget(void)

    def refuse(self, pod: Pod, now: float) -> None:
        """Records that the pod fits nowhere. Soon its group holds nothing either, unless other members are bound."""
        self._reservations.refused(group_of(pod), now)

    def preempt(self, pod: Pod) -> None:
        """Records that kube-scheduler may evict others for the pod, which fits nowhere: its group waits for it."""
        self._reservations.preempts(group_of(pod))

    def lapsed(self, pod: Pod, now: float) -> Sequence[tuple[str, str, tuple[Pod, GpuRequest]]]:
        """Returns UID, node and request of members that wait for the pod with their group although their lease has
        ended.
        """
        lapsed = self._reservations.lapsed(group_of(pod), now)
        return [(uid, each.node, each.waits) for uid, each in lapsed.items() if each.waits is not None]

    def lease_seconds(self, pod: Pod, longest: float) -> float:
        """Returns how many seconds the pod's next reservation may last."""
        return self._reservations.lease_seconds(pod_key(pod), group_of(pod), longest)

    def reserve(
        self,
        uid: str,
        pod: Pod,
        node: str,
        shares: PodShares,
        until: float,
        *,
        others: Mapping[str, PodShares] = NO_OTHERS,
        request: GpuRequest | None = None,
    ) -> None:
        """Holds `shares` for the pod until it is seen bound, forgotten, or `until` passes. It replaces an
        earlier reservation.

        `others` is held on further nodes until the bind names one; the namespace is charged once. With its `request`
        the pod gets it once more if the lease ends while the pod waits in Permit.
        """
        self.forget(uid)
        if self._orphans.is_claimed(uid):
            # The pod waits to be bound, so the daemon's report about it is wrong.
            self._orphans.drop(uid)
            self._unbind(uid)
        if uid in self._bound:
            return
        reservation = Reservation(
            node=node,
            shares=shares,
            until=until,
            others=others,
            group=group_of(pod),
            waits=waits_of(pod, request),
            seen=verdict_of(pod),
        )
        self._reservations.put(uid, reservation)
        self._booked.reserve(uid, pod, [node, *others])
        self._packing.reserve(uid, pod, [node, *others])
        beside = (replace(reserved_holding(pod, name, held), namespace="") for name, held in others.items())
        self._reserved[uid] = (reserved_holding(pod, node, shares), *beside)
        for holding in self._reserved[uid]:
            self._add(uid, holding)

    def choose(self, uid: str, node: str) -> PodShares | None:
        """Keeps the pod's reservation on this node only. Returns its shares there; None if it has nothing there."""
        reservation = self._reservations.get(uid)
        shares = None if reservation is None else reservation.on(node)
        if shares is not None and reservation is not None and reservation.others:
            holdings = self._reserved[uid]
            chosen = next(holding for holding in holdings if holding.node == node)
            for holding in holdings:
                self._subtract(uid, holding)
            chosen = replace(chosen, namespace=holdings[0].namespace)
            self._reserved[uid] = (chosen,)
            self._add(uid, chosen)
            self._reservations.change(uid, node=node, shares=shares, others=NO_OTHERS)
            self._booked.choose(uid, node)
            self._packing.choose(uid, node)
        return shares

    def extend(self, uid: str, until: float) -> None:
        """Holds the pod's reservation until then, for a bind that has begun. No effect without a reservation."""
        self._reservations.bind_begins(uid, until)

    def send(self, uid: str, attempt: int) -> None:
        """Records that a Binding of this bind may be carried out from now on. No effect without a reservation."""
        self._reservations.change(uid, sent_by=attempt)

    def stop_watching(self) -> None:
        """Reservations that were sent stay from now on, because no watch shows which of them were bound."""
        self._reservations.watched(inf)

    def watch_from(self, now: float) -> None:
        """The watch of pods works again."""
        self._reservations.watched(now)

    def sent_to(self, uid: str) -> str:
        """The node to which the pod may be bound although the watch has not shown it; empty for any other pod."""
        reservation = self._reservations.get(uid)
        return reservation.node if reservation is not None and reservation.sent_by else ""

    def drop_unsent(self) -> None:
        """Drops every reservation for which no Binding was sent."""
        for uid in self._reservations.unsent():
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """Drops the pod's reservation, if it has one."""
        self._reservations.pop(uid)
        self._booked.unreserve(uid)
        self._packing.unreserve(uid)
        for holding in self._reserved.pop(uid, ()):
            self._subtract(uid, holding)

    def keep(self, uid: str, room: KeptRoom) -> None:
        """Keeps room for the pod until it is given up or `room.until` passes. Replaces the room kept before."""
        self.give_up(uid)
        self._kept.put(uid, room)
        self._nodes.touch(room.node)

    def give_up(self, uid: str) -> None:
        """Frees the room kept for the pod, if any."""
        room = self._kept.drop(uid)
        if room is not None:
            self._nodes.touch(room.node)

    def kept(self) -> KeptRooms:
        """Returns the kept rooms for reading; `keep`, `give_up` and `expire` change them."""
        return self._kept

    def expire(self, now: float) -> None:
        """Drops expired reservations, expired kept room and expired parts of deleted pods."""
        for uid in self._orphans.expired(now):
            self.remove_pod(uid)
        for uid in self._kept.ended(now):
            self.give_up(uid)
        for uid in self._reservations.expired(now):
            self.forget(uid)

    def refused_by_kubelet(self, pod: Pod, nodes: Sequence[str], gone: Collection[str] = ()) -> Mapping[str, str]:
        """Returns the nodes whose kubelets would refuse the pod without the pods `gone`, and for each the resource of
        which it has too little.
        """
        return self._booked.refusing(pod_key(pod), pod, nodes, gone)

    def reservation(self, uid: str) -> Reservation | None:
        return self._reservations.get(uid)

    def snapshot(self, excluding_uid: str = "") -> Snapshot:
        """Returns the cluster as it is now. What the pod `excluding_uid` itself holds does not count."""
        nodes = dict(self._nodes.usages())
        bound = self._bound.get(excluding_uid)
        own = self._reserved.get(excluding_uid, ()) if bound is None else (bound,)
        kept = self._kept.get(excluding_uid)
        affected = {holding.node for holding in own} | ({kept.node} if kept is not None else set())
        for node in affected:
            if (alone := self.alone(node)) is not None:
                nodes[node] = alone.usage({excluding_uid})
        return Snapshot(
            nodes=nodes,
            unregistered=dict(self._nodes.unregistered()),
            quotas=self._quotas.every(own),
            hosts={name: room for name in nodes if (room := self._packing.left(name, excluding_uid)) is not None},
            workload=self.workload(),
        )

    def snapshot_for(self, pod: Pod) -> Snapshot:
        """Returns the cluster for a decision about this pod: nodes whose kubelets would refuse it offer nothing."""
        snapshot = self.snapshot(pod_key(pod))
        crowded = self.refused_by_kubelet(pod, list(snapshot.nodes))
        nodes = {name: usage for name, usage in snapshot.nodes.items() if name not in crowded}
        reasons = {
            name: f"{TOTAL_EXCEEDED}({resource}): the node's pods would ask for more than its total"
            for name, resource in crowded.items()
        }
        return replace(snapshot, nodes=nodes, unregistered={**snapshot.unregistered, **reasons})

    def without(self, node: str, uids: Collection[str], namespace: str, *, priority: int) -> Snapshot:
        """Returns this node, and this namespace's quotas, as a pod of this priority would find them if these pods of
        the node were gone. Room kept for pods of lower priority is free for it.
        """
        alone = self.alone(node, namespace)
        if alone is None:
            return Snapshot(unregistered={node: self.unregistered(node)})
        quotas = alone.quotas_of(namespace, uids)
        return Snapshot(nodes={node: alone.usage(uids, at_least=priority)}, quotas={namespace: quotas})

    def alone(self, node: str, namespace: str = "") -> NodeAlone | None:
        """Returns the node and the namespace's quotas as they are now; None for a node that is not registered."""
        return self._nodes.alone(node, self._quotas.alone(namespace))

    def holdings(self) -> Mapping[str, Holding]:
        """Returns what bound pods and reservations hold, by pod UID."""
        return {**self._bound, **{uid: holdings[0] for uid, holdings in self._reserved.items()}}

    def reservations(self) -> int:
        """Returns the number of reservations."""
        return len(self._reservations)

    def take_changed(self) -> set[str]:
        """Returns the nodes that were added, removed or changed in any way since the last call."""
        return self._nodes.take_changed()

    def host_left(self, node: str) -> HostAmount | None:
        """Returns the CPU and memory left, as in a snapshot; None if the node does not state what it has."""
        return self._packing.left(node)

    def take_changed_hosts(self) -> set[str]:
        """Returns the nodes whose free CPU or memory has changed since the last call."""
        return self._packing.take_changed()

    def workload(self) -> Workload:
        """Returns the pods that usually come: the same object until enough pods have come to count again."""
        return self._packing.workload(self._nodes.registered())

    def usage(self, node: str) -> NodeUsage | None:
        """Returns the usage as in a snapshot; None for a node that is not registered."""
        return self._nodes.usages().get(node)

    def usages(self) -> Mapping[str, NodeUsage]:
        """Returns the usage of all registered nodes; a node that changes gets a new value."""
        return self._nodes.usages()

    def broken(self) -> Mapping[str, str]:
        """Returns the nodes that should offer GPUs and do not, and why."""
        reasons = self._nodes.unregistered()
        return {name: reason.partition(": ")[2] for name, reason in reasons.items() if ": " in reason}

    def quota(self, namespace: str, pods: QuotaClass) -> Quota | None:
        """Returns what the namespace's quotas leave to these pods, combined; None if no quota applies to them. Safe in
        any thread.
        """
        return quota_for(pods, self._quotas.of(namespace))

    def unregistered(self, node: str) -> str:
        """Returns why a node is not registered."""
        return self._nodes.why_unregistered(node)

    def is_bound(self, uid: str) -> bool:
        return uid in self._bound

    def is_decided(self, uid: str) -> bool:
        """Returns whether this bound pod has an annotation, readable or not, with its decision."""
        holding = self._bound.get(uid)
        return holding is not None and not (holding.undecided or holding.everywhere or holding.remembered)

    def pod_problem(self, uid: str) -> str:
        """Returns why it is unknown from its annotation what this bound pod holds; empty if it is known."""
        holding = self._bound.get(uid)
        return holding.problem if holding is not None else ""

    def node_problem(self, name: str) -> str:
        """Returns why this node's annotations cannot be read; empty if they can."""
        return self._nodes.problem(name)

    def problems(self) -> Mapping[str, str]:
        """Returns unreadable nodes, pods and quotas, as `node a`, `pod UID`, `resourcequota ns/q`, and why each is
        unreadable.
        """
        nodes = {f"node {name}": reason for name, reason in self._nodes.unregistered().items() if ": " in reason}
        pods = {f"pod {uid}": holding.problem for uid, holding in self._bound.items() if holding.problem}
        return {**nodes, **pods, **self._quotas.problems()}

    def _settle(self, node: str) -> None:
        """Frees what ended pods of the node hold, and counts deleted pods that still run there, as its daemon reports
        them.
        """
        for uid in self._orphans.ended(node):
            self.remove_pod(uid)
        for uid, holding in self._orphans.held(node):
            reservation = self._reservations.get(uid)
            is_elsewhere = reservation is not None and (reservation.node != node or bool(reservation.others))
            if uid not in self._bound and not is_elsewhere:
                self.forget(uid)
                self._orphans.add(uid, node, deleted_at=0, until=inf)
                self._bound[uid] = holding
                self._add(uid, holding)

    def _unbind(self, uid: str) -> None:
        holding = self._bound.pop(uid, None)
        if holding is not None:
            self._subtract(uid, holding)

    def _add(self, uid: str, holding: Holding) -> None:
        self._nodes.add(uid, holding)
        self._quotas.charge(holding)

    def _subtract(self, uid: str, holding: Holding) -> None:
        self._nodes.subtract(uid, holding)
        self._quotas.release(holding)
