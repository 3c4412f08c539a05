import pytest

from tests.settings_reference import TABLES, written


@pytest.mark.parametrize("position", range(len(TABLES) + 1))
def test_manual_and_schema_say_what_the_programs_declare(position: int) -> None:
    path, text = list(written())[position]
    assert path.read_text("utf-8") == text, "run `make docs-settings`"
