"""Reads YAML and JSON text into a mapping; errors name line and column."""

import json
from collections.abc import Hashable, Mapping
from typing import Any

import yaml


class Unreadable(Exception):
    """The text is not what its reader expects; the message names the file and the place."""


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is written twice; otherwise the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is written twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, file: str) -> Mapping[str, object]:
    """Reads YAML; an empty text is an empty mapping. Raises Unreadable."""
    try:
        tree = yaml.load(text, _OnceLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Unreadable(f"{file}: {where}not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Unreadable(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    return _mapping({} if tree is None else tree, file)


def read_json(text: str, file: str) -> Mapping[str, object]:
    """Reads JSON, with keys in lower case, because Go's reader accepts any case. Raises Unreadable."""
    try:
        tree = json.loads(text, object_pairs_hook=lambda pairs: {key.lower(): value for key, value in pairs})
    except json.JSONDecodeError as error:
        raise Unreadable(f"{file}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise Unreadable(f"{file}: not JSON: {error}") from error
    return _mapping(tree, file)


def _mapping(tree: object, file: str) -> Mapping[str, object]:
    if not isinstance(tree, dict):
        raise Unreadable(f"{file}: expected keys with values, found {type(tree).__name__}")
    return {str(key): value for key, value in tree.items()}
