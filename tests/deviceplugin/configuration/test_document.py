"""The manual's tables are the table of settings. On a difference the failing test shows the text to paste."""

import re
from pathlib import Path

from deviceplugin.cli.options import default_text
from deviceplugin.configuration.table import SETTINGS, Setting

MANUAL = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")


def code(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words if word) or "–"


def row(setting: Setting) -> str:
    cells = (
        code((setting.key,)),
        code(setting.flags),
        code(setting.environment),
        code((default_text(setting),)),
        f"{setting.help} Expected: {setting.kind.expected}.",
    )
    return f"| {' | '.join(cells)} |"


def hami_row(setting: Setting) -> str:
    return f"| {code((setting.key,))} | {code((setting.device_config,))} | {code((setting.node_config,))} |"


def rows_below(heading: str) -> list[str]:
    table = re.search(rf"^## {heading}\n(?:[^|#\n].*\n|\n)*((?:^\|.*\n)+)", MANUAL, re.MULTILINE)
    assert table is not None, heading
    return table[1].splitlines()[2:]


def test_the_manual_describes_every_setting_as_it_is() -> None:
    assert rows_below("Settings") == [row(setting) for setting in SETTINGS.values()]


def test_the_manual_names_the_place_of_every_setting_in_hamis_files() -> None:
    in_hami = [setting for setting in SETTINGS.values() if setting.device_config or setting.node_config]
    assert rows_below("HAMi's files") == [hami_row(setting) for setting in in_hami]
