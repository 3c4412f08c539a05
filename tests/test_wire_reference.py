"""The reference of names on the wire lists them all, and is what the codecs write."""

from pathlib import Path

from proto.annotations import keys
from tests.wire_reference import EVENTS, NODES, PODS, recorded_reasons, reference

DOCUMENT = Path(__file__).parent.parent / "docs/wire-reference.md"


def test_the_wire_reference_is_what_the_codecs_write() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), "run `make docs-wire`"


def test_every_name_on_the_wire_is_in_the_reference() -> None:
    listed = {name.key for rows in (PODS | NODES).values() for name in rows}
    known = {name: value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)}
    values = {value for name, value in known.items() if name not in ("WEBHOOK_IGNORE", "POD_WRITTEN_PREFIX")}
    assert values - listed == set()


def test_every_event_is_in_the_reference() -> None:
    assert recorded_reasons() == set(EVENTS)
