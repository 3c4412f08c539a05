import asyncio
import gc
import json
import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deviceplugin.records.checkpoint_file import checkpoint_reader
from deviceplugin.records.holdings import CheckpointUnreadable, Holding, decode_checkpoint, witness

GPU = "nvidia.com/gpu"
# As kubelet 1.29 writes it (pkg/kubelet/cm/devicemanager/checkpoint of Kubernetes), shortened.
WRITTEN = json.dumps(
    {
        "Data": {
            "PodDeviceEntries": [
                {
                    "PodUID": "uid-a",
                    "ContainerName": "main",
                    "ResourceName": GPU,
                    "DeviceIDs": {"0": ["GPU-a-0"], "1": ["GPU-b-3", "GPU-c-1"]},
                    "AllocResp": "CgA=",
                },
                {
                    "PodUID": "uid-a",
                    "ContainerName": "main",
                    "ResourceName": "example.com/nic",
                    "DeviceIDs": {"-1": ["nic-0"]},
                    "AllocResp": "",
                },
            ],
            "RegisteredDevices": {GPU: ["GPU-a-0"]},
        },
        "Checksum": 2030411291,
    }
).encode()
MAIN = Holding(
    pod_uid="uid-a",
    container_name="main",
    resource_name=GPU,
    device_ids={"0": ["GPU-a-0"], "1": ["GPU-b-3", "GPU-c-1"]},
    answer="CgA=",
)


def test_every_containers_ids_are_read_over_all_numa_nodes() -> None:
    holdings = decode_checkpoint(WRITTEN)
    assert holdings[0] == MAIN
    assert holdings[0].ids == {"GPU-a-0", "GPU-b-3", "GPU-c-1"}
    assert witness(holdings, GPU) == {"uid-a": frozenset({"main"})}
    assert witness(holdings, "nvidia.com/other") == {}


@pytest.mark.parametrize(
    "entry",
    [{"DeviceIDs": None}, {"DeviceIDs": {"0": None}}, {"AllocResp": None}, {"AllocResp": "é"}, {"AllocResp": "////"}],
)
def test_what_another_plugins_entry_lacks_hides_no_entry_of_ours(entry: dict[str, object]) -> None:
    stranger = {"PodUID": "uid-b", "ContainerName": "main", "ResourceName": "example.com/nic", **entry}
    document = json.loads(WRITTEN)
    document["Data"]["PodDeviceEntries"].insert(0, stranger)
    other, ours, _ = decode_checkpoint(json.dumps(document).encode())
    assert ours == MAIN
    assert (other.ids, other.cdi_devices) == (frozenset(), ())


def test_a_kubelet_without_allocations_has_none() -> None:
    assert decode_checkpoint(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}') == ()


@example(b'{"Data":{"PodDeviceEntries":' + b'[{"DeviceIDs":' * 100_000)
@example(b'{"x":' + b"[" * 100_000)
@given(st.binary(max_size=60) | st.integers(0, len(WRITTEN) - 1).map(lambda length: WRITTEN[:length]))
def test_what_kubelet_did_not_write_is_refused_in_a_sentence(text: bytes) -> None:
    with pytest.raises(CheckpointUnreadable, match="checkpoint cannot be read"):
        decode_checkpoint(text)


async def test_the_file_is_read_as_it_is_now(tmp_path: Path) -> None:
    read = checkpoint_reader(str(tmp_path))
    assert await read() is None
    file = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    file.parent.mkdir()
    file.write_bytes(WRITTEN)
    assert await read() == decode_checkpoint(WRITTEN)
    replacement = tmp_path / "next"
    replacement.write_bytes(b'{"Data":{"PodDeviceEntries":[]},"Checksum":1}')
    os.replace(replacement, file)
    assert await read() == ()


async def test_a_file_that_is_none_of_kubelets_is_as_good_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    file.parent.mkdir()
    file.write_text("half a fi")
    read = checkpoint_reader(str(tmp_path))
    assert await read() is None
    assert await read() is None
    assert caplog.text.count("cannot be read: JSON") == 1


async def test_that_it_cannot_be_read_is_told_once_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    file.mkdir(parents=True)
    read = checkpoint_reader(str(tmp_path))
    assert [await read(), await read(), await read()] == [None, None, None]
    assert caplog.text.count("cannot be read: Is a directory") == 1
    file.rmdir()
    file.write_bytes(WRITTEN)
    assert await read() == decode_checkpoint(WRITTEN)


def readings() -> int:
    return sum(isinstance(each, Future) for each in gc.get_objects())


async def test_readings_of_a_disk_that_hangs_do_not_pile_up_and_its_silence_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    file.parent.mkdir()
    os.mkfifo(file)
    read, before = checkpoint_reader(str(tmp_path), silent_seconds=0.05), readings()
    for _ in range(3):
        assert await asyncio.gather(*(read() for _ in range(20))) == [None] * 20
    assert caplog.text.count("no answer") == 1
    assert readings() <= before + 1
    # The disk answers again.
    os.close(os.open(file, os.O_WRONLY))
    file.unlink()
    file.write_bytes(WRITTEN)
    async with asyncio.timeout(10):
        while await read() != decode_checkpoint(WRITTEN):
            pass
