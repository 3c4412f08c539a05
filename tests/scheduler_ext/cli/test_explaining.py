"""What `topogpu-scheduler explain` prints of an answer."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from scheduler_ext.capacity.account import Account
from scheduler_ext.cli import explaining
from scheduler_ext.decide.explain import NodeLine


def test_text_of_other_pods_does_not_reach_the_terminal_as_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil = "a100\x1b]0;title\x07\npod default/p runs"
    account = Account(
        pod="default/p",
        sentence=f"waits {evil}",
        said=evil,
        said_seconds_ago=1.0,
        history=(evil,),
        nodes=(NodeLine(node="n", reason="", sentence="fits"),),
        popular=(f"100.0 % of pods ask for 1 GPU of type {evil}",),
    )

    class Extender(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(account))

    with HTTPServer(("127.0.0.1", 0), Extender) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        explaining.print_account(f"http://127.0.0.1:{server.server_port}", {}, as_json=False)
        answering.join()
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07"}.intersection(printed)
    assert sum(line.startswith("pod ") for line in printed.splitlines()) == 1
    assert "  100.0 % of pods ask for 1 GPU of type a100" in printed
