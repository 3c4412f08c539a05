from tests.settings_reference import written


def test_manual_and_schema_say_what_the_programs_declare() -> None:
    differing = [path.name for path, text in written() if path.read_text("utf-8") != text]
    assert differing == [], "run `make docs-settings`"
