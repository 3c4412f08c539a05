"""What is written of the settings, from the tables that both programs declare: `python -m tests.settings_reference`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deviceplugin.configuration.table import TABLE as DAEMON
from program.settings.declared import Table
from scheduler_ext.configuration import TABLE as EXTENDER
from simulation import machines
from tests.settings_manual import filled, is_shared, manual, put_into_schema, table_of

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "daemonset" / "chart" / "topogpu" / "values.schema.json"
PAGE = ROOT / "docs" / "configuration.md"
TABLES: dict[str, Table[Any]] = {"daemon": DAEMON, "extender": EXTENDER}
_WIDTH = 100


def written() -> Iterator[tuple[Path, str]]:
    """Every file with settings in it, as it should be."""
    schema = json.loads(SCHEMA.read_text("utf-8"))
    for part in ("devicePlugin", "scheduler"):
        schema["properties"][part]["properties"]["settings"]["properties"].clear()
    shared = {key: each for key, each in DAEMON.settings.items() if is_shared(each, EXTENDER.settings)}
    parts = {"settings of both programs": table_of(shared.values())}
    for program, table in TABLES.items():
        put_into_schema(schema, table)
        parts[f"settings of the {program}"] = manual(table.settings[key] for key in table.settings if key not in shared)
    yield PAGE, filled(PAGE.read_text("utf-8"), parts)
    schema["properties"]["simulation"]["properties"]["machine"] = {"enum": ["", *machines.SHORT, *machines.names()]}
    yield SCHEMA, f"{_json(schema)}\n"


def _json(value: Any, indent: str = "") -> str:
    """A value that fits on a line is written on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(short) <= _WIDTH or not value or not isinstance(value, dict | list):
        return short
    deeper = f"{indent}  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(deeper + _json(one, deeper) for one in value) + f"\n{indent}]"
    lines = (f"{deeper}{json.dumps(key)}: {_json(one, deeper)}" for key, one in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    for file, text in written():
        file.write_text(text, "utf-8")
