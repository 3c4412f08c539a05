"""The facts that policy `fgd` reads beside GPUs: CPU and memory left on each node, and the pods that usually come."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import HostAmount, host_requested
from scheduler_ext.cluster.hosts import Hosts
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.workload import Classes, PodClass, Workload, class_of
from scheduler_ext.requests import RequestError, RequestSettings, read_request
from scheduler_ext.usual_pods import ANNOTATIONS, HOST_RESOURCES


class PackingFacts:
    """Sums and counts that each event updates."""

    def __init__(self, settings: RequestSettings) -> None:
        """Raises RequestError if the settings name usual pods that cannot be read."""
        self._settings = settings
        self._hosts = Hosts()
        self._classes = Classes(seeds(settings))

    def apply_node(self, node: Node) -> None:
        self._hosts.tell(node)

    def remove_node(self, name: str) -> None:
        self._hosts.forget(name)

    def apply_pod(self, uid: str, pod: Pod) -> None:
        self._hosts.bind(uid, pod)
        self._learn(uid, pod)

    def remove_pod(self, uid: str) -> None:
        self._hosts.unbind(uid)
        self._classes.forget(uid)

    def keep_only(self, uids: Collection[str]) -> None:
        """Drops all pods except these."""
        self._hosts.keep_only(uids)
        self._classes.keep_only(uids)

    def reserve(self, uid: str, pod: Pod, nodes: Iterable[str]) -> None:
        """Counts the pod on each of the nodes, until `choose` names one."""
        self._hosts.reserve(uid, pod, nodes)

    def choose(self, uid: str, node: str) -> None:
        self._hosts.choose(uid, node)

    def unreserve(self, uid: str) -> None:
        self._hosts.unreserve(uid)

    def left(self, node: str, without: str = "") -> HostAmount | None:
        """Returns the CPU and memory left on the node, without the request of the pod `without`; None if the node does
        not state what it has.
        """
        return self._hosts.left(node, without)

    def take_changed(self) -> set[str]:
        """Returns the nodes whose free CPU or memory has changed since the last call."""
        return self._hosts.take_changed()

    def workload(self, nodes: Collection[RegisteredNode]) -> Workload:
        """Returns the pods that usually come: the same object until enough pods have come to count again."""
        return self._classes.workload(nodes)

    def _learn(self, uid: str, pod: Pod) -> None:
        """Counts a pod that runs. One that waits, or is made again and again and never starts, costs its author
        nothing.
        """
        if not pod.is_running or self._classes.has_seen(uid):
            return
        try:
            request = read_request(pod, self._settings)
        except RequestError:
            return
        if request is not None:
            self._classes.see(uid, replace(request, host=host_requested(pod)))


def seeds(settings: RequestSettings) -> Iterator[tuple[PodClass, float]]:
    """Yields the classes of the pods that the settings name, and the number of each. Raises RequestError if one cannot
    be read.
    """
    names = settings.names
    known = {names.count, names.memory, names.memory_percentage, names.cores, *HOST_RESOURCES, *ANNOTATIONS}
    for usual in settings.usual_pods:
        for key, _ in usual.asks:
            if key not in known:
                raise RequestError("", key, f"tells no kinds of pods apart; write one of {', '.join(sorted(known))}")
        pod = usual.pod()
        request = read_request(pod, settings)
        if request is None:
            raise RequestError("", names.count, f"is missing in {str(usual)!r}")
        yield class_of(replace(request, host=host_requested(pod))), float(usual.number)
