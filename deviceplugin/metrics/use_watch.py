"""Follows who uses the GPUs, from every reading of the driver."""

from collections.abc import Callable
from dataclasses import dataclass, field

from deviceplugin.metrics.series import MOST_VGPUS
from deviceplugin.metrics.view import DaemonView
from deviceplugin.usage.last_use import LastUse, node_use, with_sole_holders
from deviceplugin.usage.used import NodeSample, Usage, node_usage
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.daemon_usage import encode_node_use


@dataclass(frozen=True, slots=True, kw_only=True)
class UseWatch:
    """`now` is Unix time in seconds."""

    view: Callable[[], DaemonView]
    monotonic: Callable[[], float]
    now: Callable[[], float]
    last: LastUse = field(default_factory=LastUse)

    def is_needed(self) -> bool:
        """Returns whether a pod holds a GPU: without one, no use has to be remembered."""
        return any(DEVICES_ALLOCATED in pod.metadata.annotations for pod in self.view().pods.values())

    def saw(self, sample: NodeSample) -> None:
        self.last.see(_usage(self.view(), sample), self.monotonic(), wall=self.now())

    def page(self, view: DaemonView, sample: NodeSample) -> bytes:
        """Returns the answer to the extender. It may run on any thread."""
        usage, now = _usage(view, sample), self.monotonic()
        return encode_node_use(node_use(view.node_name, sample.gpus, usage, self.last, now, most=MOST_VGPUS))


def _usage(view: DaemonView, sample: NodeSample) -> Usage:
    indices = {device.uuid: device.index for device in view.devices}
    return with_sole_holders(node_usage(view.pods.values(), sample, indices), sample.gpus)
