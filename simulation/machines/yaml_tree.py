"""The YAML of a machine description as a tree in which everything is written out."""

from collections.abc import Mapping

import yaml

SCHEMA = "gpu-machine/1"

MOST_GPUS = 64
"""No machine of one node has more; keeps a typing error from requesting a billion pairs."""


class MachineDescriptionError(Exception):
    """A machine description cannot be read: names the file, the field, and the problem."""

    def __init__(self, file: str, field: str, problem: str) -> None:
        super().__init__(f"{file}: {field}: {problem}" if field else f"{file}: {problem}")
        self.file = file
        self.field = field
        self.problem = problem


def yaml_mapping(text: str, file: str) -> dict[str, object]:
    """Raises MachineDescriptionError."""
    try:
        tree = yaml.safe_load(text)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise MachineDescriptionError(file, where, f"not YAML: {e.problem}") from e
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise MachineDescriptionError(file, "", f"not YAML: {' '.join(str(e).split())}") from e
    if not isinstance(tree, dict):
        raise MachineDescriptionError(file, "", f"expected a mapping with schema: {SCHEMA}")
    return tree


def with_words_resolved(tree: Mapping[str, object]) -> dict[str, object]:
    """Defaults merged into every GPU, `all` written out, and `none` and `unsupported` as None."""
    resolved = {key: None if value in ("none", "unsupported") else value for key, value in tree.items()}
    gpus = resolved.get("gpus")
    defaults = resolved.get("gpu")
    if isinstance(gpus, list):
        shared = defaults if isinstance(defaults, dict) else {}
        resolved["gpus"] = [_without_none({**shared, **gpu}) if isinstance(gpu, dict) else gpu for gpu in gpus]
        resolved["nvlink"] = _with_all_written_out(resolved.get("nvlink"), len(gpus))
        resolved["topo_m"] = _full_matrix(resolved.get("topo_m", []), len(gpus))
    return resolved


def _without_none(gpu: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in gpu.items() if not (key == "pcie" and value == "none")}


def _with_all_written_out(nvlink: object, count: int) -> object:
    switches = nvlink.get("switches") if isinstance(nvlink, dict) else None
    rows = switches.get("list") if isinstance(switches, dict) else None
    if not (isinstance(nvlink, dict) and isinstance(switches, dict) and isinstance(rows, list)):
        return nvlink
    everyone = list(range(min(count, MOST_GPUS)))
    written = [{**row, "gpus": everyone} if isinstance(row, dict) and row.get("gpus") == "all" else row for row in rows]
    return {**nvlink, "switches": {**switches, "list": written}}


def _full_matrix(topo_m: object, count: int) -> object:
    if not isinstance(topo_m, dict):
        return topo_m
    size = range(min(count, MOST_GPUS))
    return [["X" if row == column else topo_m.get("all") for column in size] for row in size]
