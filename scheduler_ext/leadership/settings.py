"""Settings of the election."""

from dataclasses import dataclass, field
from uuid import uuid4


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """`identity` is this host's name. The pod's own name and namespace are empty outside a pod."""

    name: str = ""
    """The name of the Lease; empty without leader election."""
    namespace: str = ""
    identity: str = ""
    process: str = field(default_factory=lambda: str(uuid4()))
    """Distinguishes the processes of a host, but not a process from its successor with the same journal."""
    pod_name: str = ""
    pod_namespace: str = ""
