"""The one thread that calls the driver."""

from deviceplugin.own_threads import OwnThreads


class NvmlThread(OwnThreads):
    """NVML's calls come one after the other."""

    def __init__(self) -> None:
        super().__init__("nvml")
