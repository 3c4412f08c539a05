"""A daemon that does not get ready explains itself."""

import signal

import pytest

from tests import polling
from tests.deviceplugin.daemon_rig import daemon
from tests.polling import until

pytestmark = pytest.mark.needs_compiler


async def test_the_rig_shows_what_the_daemon_waits_for_and_that_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon() as node:
        with monkeypatch.context() as patched:
            patched.setattr(polling, "LONGEST_SECONDS", 0.1)
            with pytest.raises(TimeoutError):
                await node.becomes(lambda: False)
        await until(lambda: node.said("Current thread") and node.said("waits in Agent.run"))
        assert await node.is_ready()
        node.process.send_signal(signal.SIGSEGV)
        with pytest.raises(AssertionError, match="the daemon has ended with status -11"):
            await node.becomes(lambda: False)
        assert await node.ended() == -signal.SIGSEGV
        assert [line for line in node.problems() if "Fatal Python error: Segmentation fault" in line]
