"""Decisions recorded from HAMi v2.10.0; tests/data/decisions/README.md tells their form."""

import gzip
import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parents[1] / "data" / "decisions"
_CLUSTERS = {json.loads(line)["name"]: line for line in (_DATA / "clusters.jsonl").read_bytes().splitlines()}

CLUSTERS = tuple(_CLUSTERS)
"""Their names."""


def cluster(name: str) -> dict[str, Any]:
    """A value of the caller's own, to be changed."""
    case: dict[str, Any] = json.loads(_CLUSTERS[name])
    return case


def single_nodes() -> list[bytes]:
    return gzip.decompress((_DATA / "single-node.jsonl.gz").read_bytes()).splitlines()
