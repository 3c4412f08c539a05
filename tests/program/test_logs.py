import json
import logging
from collections.abc import Iterator

import pytest

from program.logs import LONGEST_MESSAGE, RateLimit, set_up_logging

PROGRAM = "deviceplugin"
OURS, THEIRS = logging.getLogger("deviceplugin.agent"), logging.getLogger("kubernetes.aio.client.rest")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, levels = logging.getLogger(), {name: logging.getLogger(name).level for name in (PROGRAM, "program", "proto")}
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def test_a_json_line_has_time_level_logger_message_and_what_the_caller_adds(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PROGRAM, "json", "info")
    OURS.info("served %s", "GPU-1", extra={"pod": "default/train"})
    line = json.loads(capsys.readouterr().err)
    assert len(line.pop("time")) == len("2030-01-01T00:00:00.000Z")
    assert line == {"level": "info", "logger": "deviceplugin.agent", "message": "served GPU-1", "pod": "default/train"}


def test_an_exception_is_a_field_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PROGRAM, "json", "info")
    try:
        raise OSError("gone")
    except OSError:
        OURS.exception("failed")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["exception"].endswith("OSError: gone")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_level_is_ours_and_libraries_never_log_what_the_api_server_sent(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(PROGRAM, log_format, "debug")
    OURS.debug("ours")
    THEIRS.debug("response body: a secret")
    THEIRS.warning("theirs")
    first, second = capsys.readouterr().err.splitlines()
    assert "ours" in first
    assert "theirs" in second


def test_less_than_the_level_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PROGRAM, "text", "error")
    OURS.warning("ours")
    THEIRS.warning("theirs")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "message", ["Authorization: Bearer s3cr3t", "https://someone:s3cr3t@proxy:3128 refused", "basic s3cr3t"]
)
def test_credentials_are_blanked(log_format: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PROGRAM, log_format, "info")
    OURS.warning("%s", message)
    logged = capsys.readouterr().err
    assert "s3cr3t" not in logged
    assert "***" in logged


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_is_quoted_begins_no_line_of_its_own(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PROGRAM, log_format, "info")
    OURS.info("pod %s is refused", "a\n2030-01-01 00:00:00,000 ERROR forged\r\x1b[2K\u2028b")
    text = capsys.readouterr().err
    assert len(text.splitlines() if log_format == "text" else text.split("\n")[:-1]) == 1
    assert "\\n2030-01-01" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_line_is_longer_than_people_read(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(PROGRAM, log_format, "info")
    OURS.info("pod %s is refused", "p" * 900_000)
    try:
        raise KeyError("n" * 900_000)
    except KeyError:
        OURS.exception("failed")
    first, *others = capsys.readouterr().err.splitlines()
    assert LONGEST_MESSAGE < len(first) < LONGEST_MESSAGE + 200
    assert "… (898 015 more characters)" in first
    assert sum(map(len, others)) < 12_000


def test_some_records_are_logged_at_once_then_one_a_second_which_counts_those_left_out() -> None:
    limit, shown = RateLimit(at_once=2), list[str]()
    for created in (10.0, 10.1, 10.2, 10.3, 11.1, 11.2, 60.0):
        record = logging.makeLogRecord({"msg": "at %.1f", "args": (created,), "created": created})
        if limit.filter(record):
            shown.append(record.getMessage())
    assert shown == [
        "at 10.0",
        "at 10.1",
        "at 11.1 (2 earlier messages not shown)",
        "at 60.0 (1 earlier message not shown)",
    ]
