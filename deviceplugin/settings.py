"""The node daemon's settings, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    root: str = "/var/lib/kubelet"
    resource_name: str = "nvidia.com/gpu"
    poll_seconds: float = 0.25
    """How often the sockets are looked at; kubelet must be answered within a second of its return."""
    register_seconds: float = 5.0
    """Deadline of one Register call."""

    @property
    def kubelet_socket(self) -> str:
        return f"{self.root}/device-plugins/kubelet.sock"

    @property
    def endpoint(self) -> str:
        """The plugin's socket, beside kubelet's."""
        return f"nvidia-{self.resource_name.rpartition('/')[2]}.sock"

    @property
    def plugin_socket(self) -> str:
        return f"{self.root}/device-plugins/{self.endpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    node_name: str
    hook_path: str = "/usr/local"
    allocate_seconds: float = 2.0
    """How long one Allocate may wait for news of its pod."""
    prefer_seconds: float = 0.5
    """How long one GetPreferredAllocation may."""
    read_seconds: float = 30.0
    """Between two readings of the GPUs."""
    retry_seconds: float = 5.0
    """Between two tries while there is no driver or no GPU."""
