import json
from pathlib import Path

import pytest

from deviceplugin.container.cdi_files import ensure_defined, missing_devices
from deviceplugin.container.edits import DeviceNode, Hardware, Mount
from simulation.kubelet.container import decode_cdi_spec, resolve_cdi
from tests.deviceplugin.gpus import A, B

KIND = "k8s.device-plugin.nvidia.com/gpu"
NAMES = (f"{KIND}={A}", f"{KIND}={B}")
SPEC = {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": A, "containerEdits": {}}, {"name": B}]}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "etc").mkdir()
    return (str(tmp_path / "etc"), str(tmp_path / "run/cdi"))


def lacking(folders: tuple[str, str], reason: str) -> str:
    return (
        f"No CDI specification in {folders[0]} or {folders[1]} defines {NAMES[0]} and 1 more, so containers that get "
        f"these devices cannot start; {reason}"
    )


def test_names_may_be_spread_over_folders_files_and_forms(folders: tuple[str, str]) -> None:
    Path(folders[1]).mkdir(parents=True)
    Path(folders[0], "a.yaml").write_text(f"kind: {KIND}\ndevices: [{{name: {A}}}]\n")
    assert missing_devices(NAMES, folders) == (NAMES[1],)
    Path(folders[1], "b.json").write_text(json.dumps({"kind": KIND, "devices": [{"name": B}]}))
    assert missing_devices(NAMES, folders) == ()


def test_one_unreadable_file_hides_no_other(folders: tuple[str, str]) -> None:
    Path(folders[0], "a.json").write_text("{")
    Path(folders[0], "b.json").mkdir()
    Path(folders[0], "c.json.tmp").write_text(json.dumps(SPEC))
    assert missing_devices(NAMES, folders) == NAMES
    Path(folders[0], "d.json").write_text(json.dumps(SPEC))
    assert missing_devices(NAMES, folders) == ()


LIBRARY = Mount(container_path="/usr/lib64/libcuda.so.1", host_path="/d/libcuda.so.550.90.07", read_only=True)
NODES = {uuid: (DeviceNode(path=f"/dev/nvidia{minor}"),) for minor, uuid in enumerate((A, B))}
HARDWARE = Hardware(gpu_nodes=NODES, driver_mounts=(LIBRARY,))
OWN = "k8s.device-plugin.nvidia.com-gpu.json"


def test_what_others_define_is_not_written_again(folders: tuple[str, str]) -> None:
    Path(folders[0], "nvidia.json").write_text(json.dumps(SPEC))
    assert ensure_defined(NAMES, KIND, folders, hardware=HARDWARE) == ""
    assert not Path(folders[1]).exists()


def test_a_missing_cdi_spec_names_the_files_of_a_driver_whose_place_is_known(folders: tuple[str, str]) -> None:
    assert ensure_defined(NAMES, KIND, folders, hardware=HARDWARE) == ""
    [written] = Path(folders[1]).iterdir()
    assert written.name == OWN
    common, own = resolve_cdi(NAMES[1], [decode_cdi_spec(written.read_bytes())])
    assert [(mount.host_path, mount.container_path) for mount in common.mounts] == [
        ("/d/libcuda.so.550.90.07", "/usr/lib64/libcuda.so.1")
    ]
    assert [node.path for node in own.device_nodes] == ["/dev/nvidia1"]


def test_the_cdi_spec_of_an_earlier_start_is_renewed_and_good_enough_without_a_driver(
    folders: tuple[str, str],
) -> None:
    own = Path(folders[1], OWN)
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(SPEC))
    assert ensure_defined(NAMES, KIND, folders, hardware=Hardware()) == ""
    assert json.loads(own.read_text()) == SPEC
    assert ensure_defined(NAMES, KIND, folders, hardware=HARDWARE) == ""
    assert LIBRARY.host_path in own.read_text()


def test_cdi_specs_of_other_kinds_are_left_to_the_administrator(folders: tuple[str, str]) -> None:
    Path(folders[0], "nvidia.json").write_text(json.dumps(SPEC))
    name = "k8s.device-plugin.nvidia.com/gds=all"
    assert ensure_defined((*NAMES, name), KIND, folders, hardware=HARDWARE) == (
        f"No CDI specification in {folders[0]} or {folders[1]} defines {name}, so containers that get these devices "
        "cannot start; generate one with nvidia-ctk cdi generate."
    )


def test_without_the_place_of_the_driver_the_error_names_both_ways_to_a_cdi_spec(folders: tuple[str, str]) -> None:
    reason = "generate one with nvidia-ctk cdi generate, or set driver_root to where the driver is."
    assert ensure_defined(NAMES, KIND, folders, hardware=Hardware()) == lacking(folders, reason)
    assert missing_devices(NAMES, folders) == NAMES


def test_a_cdi_folder_that_cannot_be_written_is_named(folders: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    reason = f"{folders[1]}/{OWN} cannot be written: Not a directory."
    assert ensure_defined(NAMES, KIND, folders, hardware=HARDWARE) == lacking(folders, reason)
