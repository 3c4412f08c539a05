from pathlib import Path

import pytest

from deviceplugin.container.atomic_file import locked


def test_a_lock_that_another_daemon_keeps_is_waited_for_until_a_deadline(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TimeoutError, match="another daemon keeps its folder locked"):  # noqa: SIM117
        with locked(tmp_path, seconds=0.05):
            pass
    with locked(tmp_path, seconds=0):
        assert list(tmp_path.iterdir()) == []
