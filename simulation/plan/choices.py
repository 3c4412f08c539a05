"""What `topogpu-sim plan` offers to choose from. Pure, and quick to import."""

from enum import StrEnum

DEFAULT_POLICIES = ("binpack/spread", "binpack/binpack", "spread/spread", "fgd/fgd")
MOST_PODS = 100_000


class HostPolicy(StrEnum):
    """How kube-scheduler places pods without GPUs (the scoring strategy of its plugin NodeResourcesFit)."""

    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"
