"""The schema of the chart's values refuses a misspelt name and a misspelt value at every place."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemonset import render
from daemonset.render import CannotRender

SCHEMA = json.loads((render.CHART / "values.schema.json").read_text("utf-8"))
NOT_OURS = {"global", "extraObjects"}
"""Values of the charts around this one, and objects of any kind."""
FREE = {
    *("trustedUsers", "trustedGroups", "viewers", "extraEnv"),
    *("annotations", "commonAnnotations", "podAnnotations", "serviceAccountAnnotations"),
}
"""Lists and maps of any text."""
WRONG = "no such value"
ENTRY = "entry"

Place = tuple[str, ...]


def resolved(schema: Any) -> Any:
    while "$ref" in schema or "allOf" in schema:
        schema = schema["allOf"][0] if "allOf" in schema else at(schema["$ref"])
    return schema


def at(reference: str) -> Any:
    found = SCHEMA
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def values(schema: Any, place: Place, more: dict[str, Any], leaves: dict[Place, Any], objects: set[Place]) -> Any:
    """Returns values with something at every place: a wrong leaf, or an object with `more` in it."""
    schema = resolved(schema)
    if "properties" in schema:
        objects.add(place)
        known = {key: inner for key, inner in schema["properties"].items() if key not in NOT_OURS}
        return {key: values(inner, (*place, key), more, leaves, objects) for key, inner in known.items()} | more
    if schema.get("type") == "array":
        return [values(schema["items"], (*place, "0"), more, leaves, objects)]
    if schema.get("type") == "object":
        return {ENTRY: values(schema["additionalProperties"], (*place, ENTRY), more, leaves, objects)}
    leaves[place] = 1 if FREE.intersection(place) else WRONG
    return leaves[place]


def complaints(wrong: Any, file: Path) -> dict[Place, list[str]]:
    """Returns Helm's complaints by place."""
    file.write_text(json.dumps(wrong))
    with pytest.raises(CannotRender) as refusal:
        render.template("--values", str(file))
    found: dict[Place, list[str]] = {}
    for place, complaint in re.findall(r"at '/?([^']*)': (.*)", str(refusal.value)):
        found.setdefault(tuple(place.replace("~1", "/").split("/")) if place else (), []).append(complaint)
    return found


@pytest.mark.usefixtures("chart")
def test_a_misspelt_value_is_refused_at_every_place(tmp_path: Path) -> None:
    leaves: dict[Place, Any] = {}
    wrong = values(SCHEMA, (), {}, leaves, set())
    assert len(leaves) > 200
    assert leaves.keys() - complaints(wrong, tmp_path / "values.json").keys() == set()


@pytest.mark.usefixtures("chart")
def test_a_misspelt_name_is_refused_at_every_place(tmp_path: Path) -> None:
    objects: set[Place] = set()
    wrong = values(SCHEMA, (), {"nameless": {}}, {}, objects)
    found = complaints(wrong, tmp_path / "values.json")
    refused = {place for place, told in found.items() if any("'nameless' not allowed" in each for each in told)}
    assert objects - refused == set()


def keyed(schema: Any, place: Place = ()) -> Iterator[tuple[Place, bool]]:
    """Yields each map that has any key, and whether the schema says which keys."""
    schema = resolved(schema)
    for key, inner in schema.get("properties", {}).items():
        if key not in NOT_OURS:
            yield from keyed(inner, (*place, key))
    if "additionalProperties" in schema and schema["additionalProperties"] is not False:
        yield place, "propertyNames" in schema
        yield from keyed(schema["additionalProperties"], (*place, ENTRY))
    if "items" in schema:
        yield from keyed(schema["items"], (*place, "0"))


def test_the_keys_of_every_map_have_a_form() -> None:
    assert [place for place, has_form in keyed(SCHEMA) if not has_form] == []
