import logging
from collections.abc import Iterator

import pytest

from scheduler_ext.cli.logs import configure_logging

OURS, THEIRS = logging.getLogger("scheduler_ext.binding.bind"), logging.getLogger("kubernetes.aio.client.rest")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, levels = logging.getLogger(), {name: logging.getLogger(name).level for name in ("scheduler_ext", "proto")}
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_level_is_ours_and_libraries_never_log_what_the_api_server_sent(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(log_format, "debug")
    OURS.debug("ours")
    THEIRS.debug("response body: the webhook's private key")
    THEIRS.warning("theirs")
    first, second = capsys.readouterr().err.splitlines()
    assert "ours" in first
    assert "theirs" in second


def test_less_than_the_level_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", "error")
    OURS.warning("ours")
    THEIRS.warning("theirs")
    assert capsys.readouterr().err == ""
