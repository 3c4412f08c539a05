"""The manifests of `examples/`, and the pods that Kubernetes' controllers make of them."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import yaml

from proto.admission import Json

FOLDER = Path(__file__).parent.parent / "examples"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
PLACEHOLDER = "GPU-00000000-0000-0000-0000-000000000000"
"""Stands for the UUID of a GPU that the reader has."""


def objects(name: str, uuid: str = PLACEHOLDER) -> list[Json]:
    """The objects of one file, in order, with this UUID in place of the reader's."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text.replace(PLACEHOLDER, uuid)))


def pods(item: Json) -> Iterator[Json]:
    """The pod itself, or those that the controllers of Deployments and Jobs create at first; none for other kinds."""
    match item["kind"]:
        case "Pod":
            yield deepcopy(item)
        case "Deployment":
            yield from _from_template(item, item["spec"]["replicas"])
        case "Job":
            yield from _from_template(item, item["spec"]["parallelism"])


def _from_template(item: Json, count: int) -> Iterator[Json]:
    template = item["spec"]["template"]
    for number in range(count):
        metadata = {**template.get("metadata", {}), "name": f"{item['metadata']['name']}-{number}"}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": deepcopy(template["spec"])}
