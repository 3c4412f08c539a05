import json
from pathlib import Path

import pytest

from deviceplugin.container.cdi_files import SpecGenerator, ensure_defined, missing_devices
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


def ctk(tmp_path: Path, script: str, **settings: str | float) -> SpecGenerator:
    """A program in nvidia-ctk's place."""
    program = tmp_path / "nvidia-ctk"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return SpecGenerator(program=str(program), **settings)  # type: ignore[arg-type] # one mapping for both kinds


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


def test_what_is_defined_is_not_generated_again(folders: tuple[str, str], tmp_path: Path) -> None:
    Path(folders[0], "nvidia.json").write_text(json.dumps(SPEC))
    assert ensure_defined(NAMES, KIND, ctk(tmp_path, "exit 1"), folders, hardware=Hardware()) == ""
    assert not Path(folders[1]).exists()


def test_a_missing_spec_is_generated_by_uuid_for_our_kind(folders: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    generator = ctk(
        tmp_path,
        f'echo "$@" > {tmp_path}/words; echo level=info >&2; cat {tmp_path}/spec.json',
        driver_root="/run/nvidia/driver",
        dev_root="/run/dev",
    )
    assert ensure_defined(NAMES, KIND, generator, folders, hardware=Hardware()) == ""
    assert (tmp_path / "words").read_text().split() == [
        "cdi",
        "generate",
        "--format=json",
        "--device-name-strategy=uuid",
        "--vendor=k8s.device-plugin.nvidia.com",
        "--class=gpu",
        "--driver-root=/run/nvidia/driver",
        "--dev-root=/run/dev",
    ]
    written = Path(folders[1], "k8s.device-plugin.nvidia.com-gpu.json")
    assert json.loads(written.read_text()) == SPEC
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_what_an_earlier_start_generated_is_renewed_and_good_enough_if_that_fails(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    own = Path(folders[1], "k8s.device-plugin.nvidia.com-gpu.json")
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(SPEC))
    assert ensure_defined(NAMES, KIND, ctk(tmp_path, "exit 1"), folders, hardware=Hardware()) == ""
    assert json.loads(own.read_text()) == SPEC
    newer = SPEC | {"cdiVersion": "0.6.0"}
    (tmp_path / "spec.json").write_text(json.dumps(newer))
    assert ensure_defined(NAMES, KIND, ctk(tmp_path, f"cat {tmp_path}/spec.json"), folders, hardware=Hardware()) == ""
    assert json.loads(own.read_text()) == newer


def test_other_kinds_are_left_to_the_administrator(folders: tuple[str, str], tmp_path: Path) -> None:
    Path(folders[0], "nvidia.json").write_text(json.dumps(SPEC))
    name = "k8s.device-plugin.nvidia.com/gds=all"
    assert ensure_defined((*NAMES, name), KIND, ctk(tmp_path, "exit 1"), folders, hardware=Hardware()) == (
        f"No CDI specification in {folders[0]} or {folders[1]} defines {name}, so containers that get these devices "
        "cannot start; generate one with nvidia-ctk cdi generate."
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo first >&2; echo no driver >&2; exit 3", "{program} failed with status 3: no driver"),
        ("exit 3", "{program} failed with status 3: no message"),
        ("exec sleep 60", "{program} took longer than 0.2 s."),
        ("echo '{}'", "the output of {program} is not a CDI specification: "),
        ("""echo '{"kind": "a/b", "devices": []}'""", "{program} does not know them."),
    ],
)
def test_a_failure_is_one_sentence_and_leaves_nothing(
    folders: tuple[str, str], tmp_path: Path, script: str, reason: str
) -> None:
    generator = ctk(tmp_path, script, deadline_seconds=0.2 if "sleep" in script else 30)
    told = ensure_defined(NAMES, KIND, generator, folders, hardware=Hardware())
    assert told.startswith(lacking(folders, reason.replace("{program}", generator.program)))
    assert missing_devices(NAMES, folders) == NAMES


def test_without_nvidia_ctk_it_says_what_to_install(folders: tuple[str, str]) -> None:
    generator = SpecGenerator(program="/nonexistent/nvidia-ctk")
    reason = "/nonexistent/nvidia-ctk is not on this machine to generate it. Install the NVIDIA container toolkit, "
    reason += "or set driver_root to where the driver is."
    assert ensure_defined(NAMES, KIND, generator, folders, hardware=Hardware()) == lacking(folders, reason)


def test_without_nvidia_ctk_the_daemon_itself_names_the_files_of_a_driver_whose_place_it_knows(
    folders: tuple[str, str],
) -> None:
    library = Mount(container_path="/usr/lib64/libcuda.so.1", host_path="/d/libcuda.so.550.90.07", read_only=True)
    nodes = {uuid: (DeviceNode(path=f"/dev/nvidia{minor}"),) for minor, uuid in enumerate((A, B))}
    hardware = Hardware(gpu_nodes=nodes, driver_mounts=(library,))
    generator = SpecGenerator(program="/nonexistent/nvidia-ctk")
    assert ensure_defined(NAMES, KIND, generator, folders, hardware=hardware) == ""
    spec = decode_cdi_spec(Path(folders[1], "k8s.device-plugin.nvidia.com-gpu.json").read_bytes())
    common, own = resolve_cdi(NAMES[1], [spec])
    assert [(mount.host_path, mount.container_path) for mount in common.mounts] == [
        ("/d/libcuda.so.550.90.07", "/usr/lib64/libcuda.so.1")
    ]
    assert [node.path for node in own.device_nodes] == ["/dev/nvidia1"]


def test_a_folder_that_cannot_be_written_is_named(folders: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / "run").write_text("a file")
    told = ensure_defined(NAMES, KIND, ctk(tmp_path, f"cat {tmp_path}/spec.json"), folders, hardware=Hardware())
    reason = f"{folders[1]}/k8s.device-plugin.nvidia.com-gpu.json cannot be written: Not a directory."
    assert told == lacking(folders, reason)
