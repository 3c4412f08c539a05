"""Finds the GPUs that a pod gets on the node that kube-scheduler has chosen."""

from proto.devices import PodShares
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.events import Decided, NodeChosen
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.requests import RequestError, read_request
from scheduler_ext.scheduling.decide import decide
from scheduler_ext.scheduling.kept_rooms import in_that_of_others


class BindRefused(Exception):
    """The bind cannot continue. The message is the sentence for kube-scheduler."""


def reserved(cluster: Cluster, uid: str, node: str, *, now: float, until: float) -> PodShares | None:
    """What `/filter` decided for this node; it is held until then."""
    cluster.apply(NodeChosen(uid, node, until), now)
    reservation = cluster.ledger.reservation(uid)
    return None if reservation is None else reservation.on(node)


def decide_again(cluster: Cluster, pod: Pod, uid: str, node: str, *, now: float, until: float) -> PodShares | None:
    """Decide for this one node and reserve. None for a pod without GPUs. Raises BindRefused if it no longer fits."""
    try:
        request = read_request(pod, cluster.requests)
    except RequestError as error:
        raise BindRefused(str(error)) from error
    if request is None:
        return None
    ledger = cluster.ledger
    sent_to = ledger.sent_to(uid)
    if sent_to:
        raise BindRefused(f"its Binding to node {sent_to} may have been written already")
    exceeded = ledger.refused_by_kubelet(pod, [node]).get(node)
    if exceeded:
        raise BindRefused(f"kubelet would refuse it: the node's pods ask for more {exceeded} than the Node has")
    decision = decide(request, ledger.snapshot(uid), [node])
    if decision.node is None:
        decision = in_that_of_others(cluster, request, pod.spec.priority or 0, [node], now) or decision
    if decision.node is None:
        why = decision.error or decision.failed.get(node, "the pod does not fit")
        raise BindRefused(f"it has no reservation there and does not fit: {why}")
    cluster.apply(Decided(uid, pod, node, decision.shares, until), now)
    return decision.shares
