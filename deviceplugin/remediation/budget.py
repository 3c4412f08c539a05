"""The pods that the daemons of all nodes have evicted within the hour, as counted on their Lease. Pure.

`topogpu.io/evictions` on the Lease: `[["2030-01-01T00:00:00Z","gpu-1"],…]`. A daemon adds its eviction before it
evicts, on condition that no other daemon has written the Lease meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from deviceplugin.settings import RemediationSettings
from proto.annotations.keys import LEASE_EVICTIONS
from proto.annotations.unhealthy_since import read_time, stamp
from proto.annotations.values import decode_json
from proto.kubernetes.objects import Lease

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Spent:
    """No eviction is left before `until`; `why` is for people."""

    until: datetime
    why: str


def decode_evictions(value: str) -> tuple[tuple[datetime, str], ...]:
    """Returns the time and the node of each eviction. Raises AnnotationError."""
    rows = decode_json(LEASE_EVICTIONS, value, list[tuple[str, str]])
    return tuple((read_time(LEASE_EVICTIONS, f"$[{at}]", text), node) for at, (text, node) in enumerate(rows))


def encode_evictions(evictions: Sequence[tuple[datetime, str]]) -> str:
    return msgspec.json.encode([(stamp(at), node) for at, node in sorted(evictions)]).decode()


def reserve(lease: Lease, node: str, now: datetime, settings: RemediationSettings) -> Mapping[str, object] | Spent:
    """Returns the merge patch that counts one more eviction, from `node`, or why there is none left. Raises
    AnnotationError.

    Clocks of nodes differ. What is later than now counts until it is an hour ago; what is later by more than an hour
    counts as nothing, because a clock that was wrong must not stop evictions for longer.
    """
    value = lease.metadata.annotations.get(LEASE_EVICTIONS, "[]")
    recent = [(at, whose) for at, whose in decode_evictions(value) if abs(now - at) < _HOUR]
    own = [each for each in recent if each[1] == node]
    for spent, limit, where in (
        (own, settings.per_hour, f"from node {node}"),
        (recent, settings.cluster_per_hour, "in the cluster"),
    ):
        if len(spent) >= limit:
            freed = sorted(spent)[len(spent) - limit][0] + _HOUR
            return Spent(freed, f"{limit} pods were evicted from unhealthy GPUs {where} within the hour")
    annotations = {LEASE_EVICTIONS: encode_evictions([*recent, (now, node)])}
    return {"metadata": {"annotations": annotations, "resourceVersion": lease.metadata.resource_version}}
