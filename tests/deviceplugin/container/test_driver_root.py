"""Files of a driver below a folder, compared with what the real nvidia-ctk lists for the same tree."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.container.cdi import gpu_spec
from deviceplugin.container.driver_files import DriverFiles, NoDriver
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.container.edits import DeviceNode, Hardware
from proto.devices import DeviceUUID

DATA = Path(__file__).parents[2] / "data" / "driver"
HOST = "/run/nvidia/driver"
TRIPLE = "x86_64-linux-gnu"
LIBRARIES = f"/usr/lib/{TRIPLE}"
VERSION = "550.90.07"

Tree = Callable[[str], DriverRoot]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes what the lines name below a folder, which this process sees elsewhere than the host."""

    def made(lines: str) -> DriverRoot:
        for line in lines.strip().splitlines():
            name, _, target = line.strip().partition(" -> ")
            path = tmp_path / HOST.lstrip("/") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if target:
                path.symlink_to(target)
            else:
                path.touch()
        return DriverRoot(host=HOST, mounted=str(tmp_path), triple=TRIPLE)

    return made


@pytest.fixture
def whole(tree: Tree) -> DriverRoot:
    return tree((DATA / "tree.txt").read_text())


def nvidias() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / "nvidia-ctk.json").read_text())
    return content


def by_place(files: DriverFiles) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in files.mounts}


def nvidias_names() -> dict[str, str]:
    """The same of nvidia-ctk: what it mounts, and the links that its hooks make to that."""
    common = nvidias()["containerEdits"]
    places = {mount["containerPath"]: mount["hostPath"] for mount in common["mounts"]}
    links: dict[str, str] = {}
    for hami_core in common["hooks"]:
        if hami_core["args"][1] == "create-symlinks":
            for target, _, link in (pair.partition("::") for pair in hami_core["args"][3::2]):
                links[link] = str(Path(link).parent.joinpath(target)).replace("/gbm/..", "")

    def behind(place: str) -> str:
        return places[place] if place in places else behind(links[place])

    return places | {link: behind(link) for link in links}


LDCONFIG_MAKES = {
    f"{LIBRARIES}/{soname}": f"{HOST}{LIBRARIES}/{file}"
    for soname, file in (
        ("libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.1"),
        ("libnvidia-egl-wayland.so.1", "libnvidia-egl-wayland.so.1.1.13"),
    )
}
"""Names that nvidia-ctk leaves to ldconfig, which its hook runs."""


def test_a_container_gets_every_name_that_nvidia_ctk_gives_it(whole: DriverRoot) -> None:
    ours = by_place(whole.files())
    in_one_folder = {place: file for place, file in ours.items() if not place.startswith("/usr/lib64/")}
    firmware = f"/lib/firmware/nvidia/{VERSION}"
    # Firmware lies where its links lead, and is mounted where it is looked for.
    moved = {place: file.replace(f"{HOST}/usr{firmware}", f"{HOST}{firmware}") for place, file in in_one_folder.items()}
    assert moved == nvidias_names() | LDCONFIG_MAKES


def test_images_of_either_kind_find_the_libraries_without_a_cache(whole: DriverRoot) -> None:
    ours = by_place(whole.files())
    debian = {place.removeprefix(LIBRARIES): file for place, file in ours.items() if place.startswith(LIBRARIES)}
    others = {place.removeprefix("/usr/lib64"): file for place, file in ours.items() if place.startswith("/usr/lib64")}
    assert debian == others
    assert debian["/libcuda.so.1"] == f"{HOST}{LIBRARIES}/libcuda.so.{VERSION}"


def test_a_spec_of_our_own_has_the_device_files_of_nvidia_ctks_and_no_hook(whole: DriverRoot) -> None:
    theirs = nvidias()

    def node(one: dict[str, Any]) -> DeviceNode:
        return DeviceNode(path=one["path"], host_path=one["hostPath"], number=(one["major"], one.get("minor", 0)))

    hardware = Hardware(
        control_nodes=tuple(map(node, theirs["containerEdits"]["deviceNodes"])),
        gpu_nodes={
            DeviceUUID(one["name"]): tuple(map(node, one["containerEdits"]["deviceNodes"])) for one in theirs["devices"]
        },
        driver_mounts=whole.files().mounts,
    )
    ours: Any = gpu_spec(theirs["kind"], hardware)

    def nodes(edits: dict[str, Any]) -> list[tuple[str, str, int, int]]:
        return [(one["path"], one["hostPath"], one["major"], one.get("minor", 0)) for one in edits["deviceNodes"]]

    assert nodes(ours["containerEdits"]) == nodes(theirs["containerEdits"])
    assert [(one["name"], nodes(one["containerEdits"])) for one in ours["devices"]] == [
        (one["name"], nodes(one["containerEdits"])) for one in theirs["devices"]
    ]
    assert ours["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "TRITON_LIBCUDA_PATH=/usr/lib64"]
    assert {mount["options"][0] for mount in ours["containerEdits"]["mounts"]} == {"ro"}
    assert "hooks" not in ours["containerEdits"]


def test_a_driver_from_615_on_has_firmware_of_a_second_kind(tree: Tree) -> None:
    """As nvidia-ctk 1.20.1 looks for it: `ucodes*.bin` beside `gsp*.bin` (pkg/nvcdi/driver-nvml.go)."""
    folder = "lib/firmware/nvidia/615.20"
    names = ("gsp_gb20x.bin", "ucodes_gb20x.bin", "ucodes.bin", "ucodes_gb20x.txt", "other.bin")
    libraries = (f"usr/lib/{TRIPLE}/libcuda.so.615.20", f"usr/lib/{TRIPLE}/libcuda.so.1 -> libcuda.so.615.20")
    root = tree("\n".join((*libraries, *(f"{folder}/{name}" for name in names))))
    found = {place for place in by_place(root.files()) if place.startswith("/lib/firmware")}
    assert found == {f"/{folder}/{name}" for name in names[:3]}


def test_what_is_another_drivers_or_nobodys_stays_outside(whole: DriverRoot) -> None:
    names = {Path(place).name for place in by_place(whole.files())}
    assert not names & {"libdrm.so.2", "libnvidia-encode.so.535.54.03", "nvidia-modprobe", "nvidia-settings"}
    assert not [place for place in by_place(whole.files()) if "535.54.03" in place]


def test_nvml_is_found_behind_its_link_where_this_process_sees_it(whole: DriverRoot) -> None:
    assert whole.nvml() == f"{whole.seen}{LIBRARIES}/libnvidia-ml.so.{VERSION}"


def test_debians_alternatives_lead_to_a_folder_that_is_looked_into_itself(tree: Tree) -> None:
    root = tree(f"""
        usr/lib/{TRIPLE}/libcuda.so.1 -> /etc/alternatives/nvidia--libcuda.so.1-{TRIPLE}
        etc/alternatives/nvidia--libcuda.so.1-{TRIPLE} -> /usr/lib/{TRIPLE}/nvidia/current/libcuda.so.1
        usr/lib/{TRIPLE}/nvidia/current/libcuda.so.1 -> libcuda.so.535.261.03
        usr/lib/{TRIPLE}/nvidia/current/libcuda.so.535.261.03
        usr/lib/{TRIPLE}/libnvidia-gpucomp.so.535.261.03
    """)
    files = root.files()
    assert files.version == "535.261.03"
    assert by_place(files) | {} == {
        f"{folder}/{name}": f"{HOST}/usr/lib/{TRIPLE}/{file}"
        for folder in ("/usr/lib64", f"/usr/lib/{TRIPLE}")
        for name, file in (
            ("libcuda.so", "nvidia/current/libcuda.so.535.261.03"),
            ("libcuda.so.1", "nvidia/current/libcuda.so.535.261.03"),
            ("libcuda.so.535.261.03", "nvidia/current/libcuda.so.535.261.03"),
            ("libnvidia-gpucomp.so.535.261.03", "libnvidia-gpucomp.so.535.261.03"),
        )
    }


def test_a_root_as_gke_has_it_holds_libraries_programs_and_vulkan_right_below(tree: Tree) -> None:
    root = tree("""
        lib64/libcuda.so.1 -> libcuda.so.580.65.06
        lib64/libcuda.so.580.65.06
        lib64/libnvidia-ml.so.1 -> libnvidia-ml.so.580.65.06
        lib64/libnvidia-ml.so.580.65.06
        bin/nvidia-smi
        vulkan/icd.d/nvidia_icd.json
    """)
    places = by_place(root.files())
    assert places["/usr/bin/nvidia-smi"] == f"{HOST}/bin/nvidia-smi"
    assert places["/etc/vulkan/icd.d/nvidia_icd.json"] == f"{HOST}/vulkan/icd.d/nvidia_icd.json"
    assert places["/usr/lib64/libcuda.so.1"] == f"{HOST}/lib64/libcuda.so.580.65.06"


def test_the_hosts_own_root_adds_nothing_to_its_paths(tree: Tree) -> None:
    below = tree("usr/lib64/libcuda.so.1 -> libcuda.so.580.65.06\nusr/lib64/libcuda.so.580.65.06")
    places = by_place(DriverRoot(host="/", mounted=below.seen, triple=TRIPLE).files())
    assert places["/usr/lib64/libcuda.so.1"] == "/usr/lib64/libcuda.so.580.65.06"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("etc/os-release", "libcuda.so.1 is in none of its library folders"),
        ("usr/lib64/libcuda.so.580.65.06", "libcuda.so.1 is in none of its library folders"),
        ("usr/lib64/libcuda.so.1 -> libcuda.so.580", "libcuda.so.1 is in none of its library folders"),
        ("usr/lib64/libcuda.so.1 -> libcuda.so.1", "libcuda.so.1 is in none of its library folders"),
        ("usr/lib64/libcuda.so.1", "libcuda.so.1 leads to /usr/lib64/libcuda.so.1, whose name has no version"),
    ],
)
def test_a_root_without_a_whole_driver_is_refused_in_a_clause(tree: Tree, lines: str, problem: str) -> None:
    with pytest.raises(NoDriver) as refused:
        tree(lines).files()
    assert str(refused.value) == f"no NVIDIA driver below {HOST}: {problem}"


def test_a_root_that_is_not_there_yet_has_no_nvml_and_later_has_one(tree: Tree, tmp_path: Path) -> None:
    late = DriverRoot(host=f"{HOST}/late", mounted=str(tmp_path), triple=TRIPLE)
    with pytest.raises(NoDriver) as refused:
        late.nvml()
    assert (
        str(refused.value) == f"no NVIDIA driver below {late.host}: libnvidia-ml.so.1 is in none of its library folders"
    )
    tree("late/usr/lib64/libnvidia-ml.so.1 -> libnvidia-ml.so.580.65.06\nlate/usr/lib64/libnvidia-ml.so.580.65.06")
    assert late.nvml() == f"{tmp_path}{HOST}/late/usr/lib64/libnvidia-ml.so.580.65.06"


def test_links_lead_nowhere_outside_of_the_root(tree: Tree) -> None:
    root = tree("""
        usr/lib64/libcuda.so.1 -> libcuda.so.580.65.06
        usr/lib64/libcuda.so.580.65.06
        usr/bin/nvidia-smi -> ../../../smi
        usr/bin/nvidia-debugdump -> /opt/tool
        opt/tool
        usr/bin/nvidia-persistenced -> nvidia-persistenced
    """)
    (Path(root.seen).parent / "smi").touch()
    places = by_place(root.files())
    assert places["/usr/bin/nvidia-debugdump"] == f"{HOST}/opt/tool"
    assert not places.keys() & {"/usr/bin/nvidia-smi", "/usr/bin/nvidia-persistenced"}


def test_a_library_whose_name_is_no_text_is_left_out(tree: Tree) -> None:
    driver = tree(f"""
        usr/lib64/libcuda.so.1 -> libcuda.so.{VERSION}
        usr/lib64/libcuda.so.{VERSION}
    """)
    (Path(driver.seen) / "usr/lib64" / os.fsdecode(b"lib\xff.so." + VERSION.encode())).touch()
    assert all(
        path.isprintable() for mount in driver.files().mounts for path in (mount.host_path, mount.container_path)
    )


def test_a_name_that_is_no_text_or_a_chain_of_links_without_end_hides_no_other_file(tree: Tree, tmp_path: Path) -> None:
    driver = tree(f"""
        usr/lib64/libcuda.so.{VERSION}
        usr/lib64/libcuda.so.1 -> libcuda.so.{VERSION}
        usr/lib64/libnvidia-loop.so.1 -> libnvidia-loop.so.2
        usr/lib64/libnvidia-loop.so.2 -> libnvidia-loop.so.1
        lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin
        """)
    firmware = tmp_path / HOST.lstrip("/") / "lib/firmware/nvidia" / VERSION
    (firmware / "gsp_\udc80.bin").touch()
    (firmware / "gsp_link.bin").symlink_to("gsp_\udc80.bin")
    places = by_place(driver.files())
    assert [place for place in places if "firmware" in place] == [f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"]
    assert not [place for place in places if "loop" in place]
    assert places["/usr/lib64/libcuda.so.1"] == f"{HOST}/usr/lib64/libcuda.so.{VERSION}"
