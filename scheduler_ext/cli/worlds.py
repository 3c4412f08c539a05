"""Clusters in which several pods are placed one after the other, each beside those before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from proto.annotations.keys import DEVICES_ALLOCATED, POD_NODE
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.accounting import NOTHING, effective
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.place import with_pod
from scheduler_ext.quota_class import are_in
from scheduler_ext.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class StateWorld:
    """A cluster of objects. `names` are its nodes in the order of the document."""

    ledger: Ledger
    names: Sequence[str]

    def snapshot_for(self, pod: Pod) -> Snapshot:
        """Returns the cluster without the pod itself."""
        return self.ledger.snapshot_for(pod)

    def place(self, pod: Pod, _: GpuRequest, decision: Decision) -> None:
        """Places the pod where the decision puts it."""
        node, devices = decision.node or "", encode_pod_devices(decision.shares)
        annotations = {**pod.metadata.annotations, POD_NODE: node, DEVICES_ALLOCATED: devices}
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        self.ledger.apply_pod(msgspec.structs.replace(pod, metadata=metadata, spec=spec))


class SnapshotWorld:
    """A cluster as the running extender wrote it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.names: Sequence[str] = [*snapshot.nodes, *snapshot.unregistered]
        self._snapshot = snapshot

    def snapshot_for(self, _: Pod) -> Snapshot:
        """Returns all of it: a snapshot has no record of the pods that it counts."""
        return self._snapshot

    def place(self, _: Pod, request: GpuRequest, decision: Decision) -> None:
        if decision.node is None:
            return
        before = self._snapshot
        part = sum(effective(request.kinds, decision.shares).values(), NOTHING)
        quotas = tuple(
            replace(quota, used=quota.used + part) if are_in(request.quota_class, quota.scopes) else quota
            for quota in before.quotas.get(request.namespace, ())
        )
        usage = with_pod(before.nodes[decision.node], request, decision.shares)
        self._snapshot = replace(
            before,
            nodes={**before.nodes, decision.node: usage},
            quotas={**before.quotas, request.namespace: quotas},
        )


World = StateWorld | SnapshotWorld
