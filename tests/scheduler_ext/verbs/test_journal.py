"""What a process that was killed has written down of its Bindings, as the next one finds it."""

from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest
from msgspec.structs import replace

from proto.devices import DeviceShare, DeviceUUID
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.verbs.state_machine import SentBinding

SHARES = ((DeviceShare(uuid=DeviceUUID("GPU-n-0"), memory_mib=1000, cores=0),),)
SENT = SentBinding(PodName(namespace="default", name="p"), "uid-p", "n", SHARES)


def test_the_next_process_finds_what_was_sent_and_has_the_same_name(tmp_path: Path) -> None:
    before = JournalFiles(tmp_path)
    before.add(SENT)
    before.close()
    after = JournalFiles(tmp_path)
    assert (after.left, after.process) == ((SENT,), before.process)


@pytest.mark.parametrize(
    "garbage", [b"", b"\0\xff", b'{"pod":{"name":"\xff\xfe"}}', b'{"pod":{"name":"\\ud800"}}', b"[" * 100_000, b"[]"]
)
def test_what_cannot_be_read_was_not_sent_and_is_no_trouble(tmp_path: Path, garbage: bytes) -> None:
    before = JournalFiles(tmp_path)
    before.add(SENT)
    before.close()
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(garbage)
    assert JournalFiles(tmp_path).left == ()
    assert not file.exists()


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_a_file_that_was_cut_short_names_no_binding(tmp_path: Path, cut: int) -> None:
    before = JournalFiles(tmp_path)
    before.add(SENT)
    before.close()
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(file.read_bytes()[:-cut] if cut else b"")
    assert JournalFiles(tmp_path).left == ()


def test_a_disk_that_is_full_takes_nothing_from_what_was_written_down_before(tmp_path: Path) -> None:
    before = JournalFiles(tmp_path)
    before.add(SENT)
    limits = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            before.add(replace(SENT, node="m"))
    finally:
        setrlimit(RLIMIT_FSIZE, limits)
    before.close()
    assert JournalFiles(tmp_path).left == (SENT,)
