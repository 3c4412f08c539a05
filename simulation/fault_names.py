"""The faults that `topogpu-sim break` knows. Pure, and quick to import."""

from collections.abc import Mapping

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
"""What each name means."""
