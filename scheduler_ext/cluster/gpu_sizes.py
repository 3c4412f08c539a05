"""The memory of the cluster's GPUs, by type: what a whole GPU is at least. Any thread may read it."""

from collections.abc import Sequence

from proto.devices import Device
from scheduler_ext.requests import DeviceFilter


class GpuSizes:
    """The smallest GPU of each type that any node has had since the start. A node that is away comes back, perhaps with
    pods that would be counted with too much; so none is forgotten.
    """

    def __init__(self) -> None:
        self._smallest: dict[str, int] = {}

    def apply(self, devices: Sequence[Device]) -> None:
        for device in devices:
            known = self._smallest.get(device.type)
            # A GPU whose memory could not be read is no size.
            if device.memory_mib > 0 and (known is None or device.memory_mib < known):
                self._smallest[device.type] = device.memory_mib

    def smallest(self, wanted: DeviceFilter) -> int:
        """Returns the MiB of the smallest GPU of a type that the filter allows; 0 if there is none."""
        known = self._smallest.copy().items()
        return min((size for model, size in known if wanted.allows_type(model)), default=0)
