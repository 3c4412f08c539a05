"""Decoders that several threads make at once."""

import ast
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.daemon_usage import UsageUnreadable, decode_node_use
from proto.decoding import decoded

_PRODUCT = ("proto", "program", "deviceplugin", "scheduler_ext", "kubectl_topogpu", "simulation")
_TYPED = {"msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"}


def test_a_thread_decodes_into_a_class_that_another_thread_just_reads_for_the_first_time() -> None:
    """msgspec itself ends the process by SIGSEGV."""
    program = """
        import threading
        import msgspec
        from proto.decoding import converted, decoded

        begun, found = threading.Event(), []

        def other() -> None:
            begun.set()
            found.append(decoded(b'{"inner": {"x": 1}, "y": 2}', Outer).y)
            found.append(converted({"inner": {"x": 1}, "y": 3}, Outer).y)

        thread = threading.Thread(target=other)

        def read() -> type:
            thread.start()
            begun.wait()
            thread.join(0.2)
            return int

        class Inner(msgspec.Struct):
            x: "read()"

        class Outer(msgspec.Struct):
            inner: Inner
            y: int

        found.append(decoded(b'{"inner": {"x": 1}, "y": 1}', Outer).y)
        thread.join()
        print(sorted(found))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, "[1, 2, 3]\n"), ended.stderr


def test_only_one_module_makes_decoders() -> None:
    others = [
        f"{path}:{call.lineno}"
        for folder in _PRODUCT
        for path in sorted(Path(folder).rglob("*.py"))
        if path != Path("proto/decoding.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _is_typed(call)
    ]
    # It makes the decoder first.
    assert [place.partition(":")[0] for place in others] == ["scheduler_ext/apiserver.py"]


def _is_typed(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    with_type = name in {"msgspec.json.decode", "msgspec.msgpack.decode"} and any(
        each.arg == "type" for each in call.keywords
    )
    return with_type or name in _TYPED


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"name":"\xff"}', "not UTF-8 text"),
        ('{"name":"\ud800"}', "not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_text_that_msgspec_gives_up_is_an_error_as_every_other_malformed_text(text: bytes | str, problem: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=problem):
        decoded(text, Any)


@given(
    st.binary() | st.binary().map(lambda part: b'{"name":"' + part + b'"}') | st.text(), st.sampled_from([Any, dict])
)
def test_no_text_makes_decoding_raise_another_error(text: bytes | str, kind: Any) -> None:
    with suppress(msgspec.DecodeError):
        decoded(text, kind)


def test_a_daemon_whose_answer_is_not_utf_8_is_unreadable() -> None:
    with pytest.raises(UsageUnreadable, match="the answer is not the use of GPUs"):
        decode_node_use(b'{"node":"\xff"}', "node-1")
