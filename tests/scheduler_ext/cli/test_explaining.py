"""What `topogpu-scheduler explain` prints of an answer."""

import msgspec
import pytest

from scheduler_ext.cli import explaining
from scheduler_ext.decide.account import Account
from scheduler_ext.decide.explain import NodeLine


def test_text_of_other_pods_does_not_reach_the_terminal_as_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "a100\x1b]0;title\x07\npod default/p runs"
    account = Account(
        pod="default/p",
        sentence=f"waits {evil}",
        said=evil,
        said_seconds_ago=1.0,
        story=(evil,),
        nodes=(NodeLine(node="n", reason="", sentence="fits"),),
        popular=(f"100.0 % of pods ask for 1 GPU of type {evil}",),
    )

    async def answer(*_: object) -> bytes:
        return msgspec.json.encode(account)

    monkeypatch.setattr(explaining, "_ask", answer)
    explaining.print_account("http://127.0.0.1:1", {}, as_json=False)
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07"}.intersection(printed)
    assert sum(line.startswith("pod ") for line in printed.splitlines()) == 1
    assert "  100.0 % of pods ask for 1 GPU of type a100" in printed
