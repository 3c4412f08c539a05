"""The choices that `topogpu-sim plan` offers. Pure, and quick to import."""

from enum import StrEnum

DEFAULT_POLICIES = ("binpack/spread", "binpack/binpack", "spread/spread", "fgd/fgd")
MOST_PODS = 100_000


class HostPolicy(StrEnum):
    """The order of nodes for pods without GPUs (the scoring strategy of kube-scheduler's plugin NodeResourcesFit)."""

    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"
