import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.configuration.table import TABLE as DAEMON
from program.settings.declared import Setting
from program.settings.kinds import DURATION, DURATION_OR_ZERO, UnfitValue, duration_text, read_duration
from scheduler_ext.configuration import TABLE as EXTENDER

EVERY = [*DAEMON.settings.values(), *EXTENDER.settings.values()]


@pytest.mark.parametrize("setting", [one for one in EVERY if not one.needed_as], ids=lambda one: one.key)
def test_every_default_is_a_value_of_its_kind_as_it_is_written(setting: Setting) -> None:
    written = setting.kind.to_file(setting.default)
    assert setting.kind.from_file(json.loads(json.dumps(written))) == setting.default
    json.dumps(setting.kind.schema)


def test_durations_are_read_as_go_writes_them() -> None:
    assert [read_duration(text) for text in ("5m", "1m30s", "500ms", "1.5h", "0")] == [300, 90, 0.5, 5400, 0]


@pytest.mark.parametrize("text", ["soon", "", "5", "5m x", "-1s", "0s", "0", "99999999999999h", "1s\n"])
def test_what_is_no_duration_above_zero_is_refused(text: str) -> None:
    with pytest.raises(UnfitValue):
        DURATION.from_text(text)


@given(st.integers(0, 366 * 24 * 3_600_000).map(lambda milliseconds: milliseconds / 1000))
def test_a_duration_is_read_as_it_was_written(seconds: float) -> None:
    assert DURATION_OR_ZERO.from_text(duration_text(seconds)) == pytest.approx(seconds)
