"""Keeps GPUs that were freed for a pod until kube-scheduler tries the pod again.

A pod for which others are evicted waits until those have ended; kube-scheduler tries it only then. What becomes free
meanwhile is kept from pods of the same or a lower priority. All of it is kept while the victims end, and for a short
time once the pod fits.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.events import NominationsEnded, RoomKept, RoomWanted, TimePassed
from scheduler_ext.cluster.records import RecordState, kept_record
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.cluster.waiting_pods import Nomination
from scheduler_ext.decide.effort import Effort, finished, within
from scheduler_ext.decide.preempt import EvictionTrial, decide_without, gpu_holders, victims
from scheduler_ext.requests import readable_request

LONGEST_SECONDS = 3600.0
"""The longest time for which room is kept, for victims that end slowly."""
TAKEN_SECONDS = 120.0
"""The time for which room is kept once the pod fits. kube-scheduler tries it within seconds, because the end of a pod
wakes waiting ones.
"""
MOST_KEPT = 200
"""Pods for which room is kept at the same time; further ones get none."""
MOST_EFFORT = 10_000
"""The most effort to find kube-scheduler's victims: about 20 ms. Beyond this no room is kept."""
MOST_CHECKED = 20
"""The most nominated pods that one turn checks: each check is a decision about one node."""


def keep_room(cluster: Cluster, nomination: Nomination, gone: Iterable[str], now: float) -> bool:
    """Keeps the room that the pod gets on the node once these pods, and those leaving anyway, are gone.

    Returns False if the pod gets none, or if room is kept for too many pods.
    """
    request, node, priority = nomination.request, nomination.node, nomination.priority
    cluster.apply(RoomWanted(nomination), now)
    if len(cluster.ledger.records.of(RecordState.KEPT)) >= MOST_KEPT:
        return False
    leaving = (entry.uid for entry in cluster.pods.running(node).values() if entry.leaving)
    decision = decide_without(cluster.ledger, request, priority=priority, node=node, gone={*gone, *leaving})
    if decision.node is None:
        return False
    until = now + LONGEST_SECONDS
    cluster.apply(RoomKept(kept_record(request, node, decision.shares, priority=priority, until=until)), now)
    return True


def keep_room_for(cluster: Cluster, pod: Pod, node: str, now: float) -> None:
    """Keeps room after kube-scheduler nominated the pod for the node. The victims are those of our last answer; after a
    restart they are computed again.
    """
    request = readable_request(pod, cluster.requests)
    if request is None:
        return
    priority = pod.spec.priority or 0
    nomination = Nomination(request=request, priority=priority, node=node)
    if keep_room(cluster, nomination, cluster.nominations.proposed(request.uid, node), now):
        return
    effort = Effort()
    trial = EvictionTrial(cluster.ledger.alone(node, request.namespace), request, priority, effort)
    search = victims(priority, frozenset(), gpu_holders(cluster.pods, node), trial.fits)
    chosen = finished(within(search, effort, MOST_EFFORT))
    if chosen is not None:
        keep_room(cluster, nomination, chosen, now)


def shorten_taken_rooms(cluster: Cluster, start: int, now: float) -> int:
    """Keeps room for only a short time more once its pod fits in it.

    It checks `MOST_CHECKED` pods from number `start` on. Returns the number to continue with.
    """
    cluster.apply(TimePassed(), now)
    rooms = cluster.ledger.records.of(RecordState.KEPT)
    start = start if start < len(rooms) else 0
    for room in rooms[start : start + MOST_CHECKED]:
        known, until = cluster.nominations.of(room.uid), now + TAKEN_SECONDS
        if until < room.until and known is not None and _fits(cluster, known):
            cluster.apply(RoomKept(replace(room, until=until)), now)
    ended = [uid for uid in cluster.nominations.ours() if cluster.ledger.records.kept(uid) is None]
    cluster.apply(NominationsEnded(ended), now)
    return start + MOST_CHECKED


def _fits(cluster: Cluster, known: Nomination) -> bool:
    decision = decide_without(cluster.ledger, known.request, priority=known.priority, node=known.node, gone=())
    return decision.node is not None
