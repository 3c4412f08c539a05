"""The words that commands offer. Pure, and quick to import."""

from collections.abc import Mapping
from enum import StrEnum

DEFAULT_POLICIES = ("binpack/spread", "binpack/binpack", "spread/spread", "fgd/fgd")
MOST_PODS = 100_000


class HostPolicy(StrEnum):
    """The order of nodes for pods without GPUs (the scoring strategy of kube-scheduler's plugin NodeResourcesFit)."""

    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"


FAULTS: Mapping[str, str] = {
    "xidN": "the driver reports Xid N, such as xid48; xid79 also takes the GPU off the bus",
    "lost": "the GPU falls off the bus",
    "hang": "the driver's calls for the GPU do not return",
    "link-down": "the GPU's first NVLink goes down",
    "links-down": "all NVLinks of the GPU go down",
    "ecc": "an uncorrected memory error",
    "row-remap": "a faulty memory row cannot be remapped",
    "reset": "the driver asks for a reset of the GPU",
    "fabric": "the GPU loses its place in the NVSwitch fabric",
}
"""The faults of `break`, with their meaning."""
