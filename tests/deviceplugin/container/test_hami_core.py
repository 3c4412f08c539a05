import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.container.edits import (
    AllocationSettings,
    ContainerEdits,
    ContainerFacts,
    HamiCore,
    Hardware,
    NoHamiCore,
)
from deviceplugin.container.hami_core import (
    CannotLimit,
    enforcement_for,
    find_hami_core,
    prepare,
    prepared_edits,
)
from deviceplugin.settings import AgentSettings
from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.objects import EnvVar
from simulation.hami_core import placeholder
from tests.deviceplugin.gpus import INVENTORY, A, B, a100

MACHINE = os.uname().machine
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}
LIBRARY = placeholder(MACHINE)
FACTS = ContainerFacts(pod_uid="0d4f", name="train")
WHOLE, PART = DeviceShare(uuid=A, memory_mib=40960, cores=0), DeviceShare(uuid=A, memory_mib=3000, cores=30)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    (folder / "vgpu").mkdir(parents=True)
    (folder / "vgpu/ld.so.preload").write_text(f"{folder}/vgpu/libvgpu.so\n")
    return folder


@pytest.fixture
def hami_core(root: Path) -> HamiCore:
    (root / "vgpu/libvgpu.so").write_bytes(LIBRARY)
    return installed(root)


def installed(root: Path) -> HamiCore:
    found = find_hami_core(str(root))
    assert isinstance(found, HamiCore), found
    return found


def missing(root: Path) -> tuple[str, bool]:
    found = find_hami_core(str(root))
    assert isinstance(found, NoHamiCore), found
    return found.problem.replace(f"{root}/vgpu/", ""), found.is_damaged


def given(root: Path) -> ContainerEdits:
    """A container that gets a part of a GPU."""
    return prepared_edits((PART,), INVENTORY, FACTS, AllocationSettings(), Hardware(), node=limited(root))


def limited(root: Path, allowed: bool = False) -> AgentSettings:
    return AgentSettings(hook_path=str(root), allows_unheld=allowed)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_hami_core_is_there_whole_or_not_at_all(root: Path) -> None:
    library, preload = root / "vgpu/libvgpu.so", root / "vgpu/ld.so.preload"
    nothing = f"there is no libvgpu.so in {root}/vgpu"
    assert missing(root / "elsewhere") == (f"there is no libvgpu.so in {root}/elsewhere/vgpu", False)
    assert missing(root) == (nothing, True)
    library.write_bytes(LIBRARY)
    assert installed(root) == HamiCore(root=str(root), library=str(library), preload=str(preload))
    preload.unlink()
    assert missing(root) == ("libvgpu.so exists, but ld.so.preload is missing", True)
    library.unlink()
    assert missing(root) == (nothing, False)


def test_a_library_that_no_program_can_load_limits_nothing(root: Path) -> None:
    """The dynamic loader says so on standard error and goes on without it."""
    library = root / "vgpu/libvgpu.so"
    for content, problem in (
        (b"", "libvgpu.so is not an ELF file"),
        (placeholder(OTHER[MACHINE]), f"libvgpu.so was built for another machine than this one, {MACHINE}"),
        (LIBRARY[:40], "libvgpu.so is not an ELF file"),
    ):
        library.write_bytes(content)
        assert missing(root) == (problem, True)


def test_a_list_that_does_not_name_the_library_limits_nothing(root: Path) -> None:
    (root / "vgpu/libvgpu.so").write_bytes(LIBRARY)
    name = f"{root}/vgpu/libvgpu.so"
    for listed in ("", "/elsewhere/libvgpu.so\n", f"{name}.v2\n", f"# {name}\n", f"/a.so #\t{name}", f"{name}\r\n"):
        (root / "vgpu/ld.so.preload").write_bytes(listed.encode())
        assert missing(root) == ("ld.so.preload does not name libvgpu.so", True)
    os.truncate(root / "vgpu/ld.so.preload", 1 << 36)
    assert missing(root) == ("ld.so.preload does not name libvgpu.so", True)


def test_a_list_may_name_others_beside_the_library(root: Path) -> None:
    (root / "vgpu/libvgpu.so").write_bytes(LIBRARY)
    name = f"{root}/vgpu/libvgpu.so"
    for listed in (f"/a.so:{name}", f"# ours\n{name} /b.so # and more\n"):
        (root / "vgpu/ld.so.preload").write_text(listed)
        assert isinstance(find_hami_core(str(root)), HamiCore)
    (root / "vgpu/ld.so.preload").write_text(f"/lib/other.so {root}/vgpu/libvgpu.so")
    assert installed(root)


def test_the_versioned_file_that_hami_installed_last_comes_before_the_plain_one(root: Path) -> None:
    for second, name in enumerate(("libvgpu.so", "libvgpu.so.v2.9.0", "libvgpu.so.v2.10.0")):
        (root / "vgpu" / name).write_bytes(LIBRARY)
        os.utime(root / "vgpu" / name, (second, second))
    assert installed(root).library == f"{root}/vgpu/libvgpu.so.v2.10.0"


def test_our_link_is_resolved_so_that_a_container_keeps_its_version(root: Path) -> None:
    (root / "vgpu/libvgpu.so.v2.10.0").write_bytes(LIBRARY)
    (root / "vgpu/libvgpu.so.0123456789abcdef").write_bytes(LIBRARY)
    (root / "vgpu/libvgpu.so").symlink_to("libvgpu.so.0123456789abcdef")
    assert installed(root).library == f"{root}/vgpu/libvgpu.so.0123456789abcdef"


def test_a_link_that_leads_nowhere_is_no_library(root: Path) -> None:
    (root / "vgpu/libvgpu.so").symlink_to("libvgpu.so.0123456789abcdef")
    assert missing(root) == (f"there is no libvgpu.so in {root}/vgpu", True)


def test_a_container_gets_fresh_folders_of_its_own_open_to_its_user(root: Path, hami_core: HamiCore) -> None:
    region, lock = root / "vgpu/containers/0d4f_train", root / "vgpu/locks/0d4f_train"
    given(root)
    (region / "0d4f.cache").write_text("of a container that never started")
    (lock / "lock").write_text("held")
    for parent, file in (("containers", "77aa.cache"), ("locks", "lock")):
        neighbour = root / f"vgpu/{parent}/77aa_serve/{file}"
        neighbour.parent.mkdir()
        neighbour.write_text("running")
    given(root)
    assert (list(region.iterdir()), list(lock.iterdir())) == ([], [])
    assert (mode(region), mode(lock)) == (0o777, 0o777)
    assert (root / "vgpu/containers/77aa_serve/77aa.cache").read_text() == "running"
    assert (root / "vgpu/locks/77aa_serve/lock").read_text() == "running"


def test_whatever_is_in_place_of_a_folder_is_put_aside_and_not_followed(root: Path, hami_core: HamiCore) -> None:
    precious = root / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").write_text("kept")
    (root / "vgpu/containers").mkdir()
    (root / "vgpu/containers/0d4f_train").symlink_to(precious)
    (root / "vgpu/locks").mkdir()
    (root / "vgpu/locks/0d4f_train").write_text("a file")
    given(root)
    for parent in ("containers", "locks"):
        folder = root / "vgpu" / parent / "0d4f_train"
        assert (folder.is_symlink(), mode(folder), list(folder.iterdir())) == (False, 0o777, [])
    assert ((precious / "file").read_text(), mode(precious)) == ("kept", 0o700)


def test_the_owner_of_a_folder_does_not_matter(root: Path, hami_core: HamiCore) -> None:
    modes = {"containers": 0o777, "locks": 0o777, "overrides": 0o755}
    given(root)
    for parent in modes:
        os.chmod(root / "vgpu" / parent / "0d4f_train", 0)
        if os.geteuid() == 0:
            os.chown(root / "vgpu" / parent / "0d4f_train", 1234, 1234)
    given(root)
    assert {path.parent.name: mode(path) for path in root.glob("vgpu/*/0d4f_train")} == modes
    assert {path.owner() for path in root.glob("vgpu/*/0d4f_train")} == {root.owner()}


def test_a_folder_that_cannot_be_made_is_told_not_ignored(root: Path, hami_core: HamiCore) -> None:
    env, mounted = given(root).env, f"{root}/vgpu/containers/0d4f_train"
    shutil.rmtree(root / "vgpu/containers")
    (root / "vgpu/containers").write_text("a file")
    with pytest.raises(CannotLimit, match=r"cannot make .*/containers/0d4f_train for HAMi-core: (File exists|Not a)"):
        prepare(str(root), FACTS, env, [mounted])


def test_where_no_folder_can_be_made_nothing_is_limited(root: Path, hami_core: HamiCore) -> None:
    (root / "vgpu/locks").write_text("a file")
    assert missing(root) == ("locks cannot be written", True)


def asked(root: Path, *shares: DeviceShare, allowed: bool = False) -> HamiCore | None:
    return enforcement_for(shares, INVENTORY, FACTS, limited(root, allowed)).hami_core


def test_a_part_of_a_gpu_is_refused_where_nothing_limits_and_a_whole_one_never(root: Path) -> None:
    nowhere = root / "nowhere"
    with pytest.raises(CannotLimit) as refusal:
        asked(nowhere, PART)
    assert str(refusal.value) == (
        f"container train was given a part of {A} (3000 MiB, 30 %), and nothing on this node holds it to its memory: "
        f"the driver does not (allocation is not by slots), and HAMi-core does not (there is no libvgpu.so in {nowhere}"
        "/vgpu); ask for whole GPUs, install HAMi-core, or add unenforced to the daemon's limits"
    )
    assert asked(nowhere, PART, allowed=True) is None
    for whole in (WHOLE, DeviceShare(uuid=A, memory_mib=0, cores=0), DeviceShare(uuid=A, memory_mib=40960, cores=100)):
        assert asked(nowhere, whole) is None
    for part in (DeviceShare(uuid=A, memory_mib=40959, cores=0), DeviceShare(uuid=A, memory_mib=40960, cores=99)):
        with pytest.raises(CannotLimit):
            asked(nowhere, WHOLE, part)
    assert not nowhere.exists()


def test_a_container_that_turns_its_limits_off_is_given_no_part_of_a_gpu(root: Path, hami_core: HamiCore) -> None:
    free = ContainerFacts(pod_uid="0d4f", name="train", env=(EnvVar(name="CUDA_DISABLE_CONTROL", value="true"),))
    with pytest.raises(CannotLimit, match=r"CUDA_DISABLE_CONTROL turns HAMi-core's limits off; .*, remove"):
        enforcement_for((PART,), INVENTORY, free, limited(root))
    assert enforcement_for((WHOLE,), INVENTORY, free, limited(root)).hami_core is None
    allowing = limited(root, True)
    assert enforcement_for((PART,), INVENTORY, free, allowing).hami_core == hami_core


def test_whole_gpus_come_without_the_library(root: Path, hami_core: HamiCore) -> None:
    other = DeviceShare(uuid=B, memory_mib=0, cores=100)
    assert asked(root, WHOLE, other) is None
    edits = prepared_edits(*((WHOLE, other), INVENTORY, FACTS, AllocationSettings(), Hardware()), node=limited(root))
    assert (edits.mounts, edits.env["CUDA_DEVICE_MEMORY_LIMIT_1"]) == ((), "40960m")
    assert "CUDA_DEVICE_MEMORY_SHARED_CACHE" not in edits.env
    assert not list(root.glob("vgpu/*/0d4f_train"))


def test_parts_of_several_gpus_are_refused_unless_that_is_allowed_or_the_container_has_run_with_them(
    root: Path, hami_core: HamiCore
) -> None:
    several = (PART, DeviceShare(uuid=B, memory_mib=40960, cores=0))
    with pytest.raises(CannotLimit) as refusal:
        asked(root, *several)
    assert str(refusal.value) == (
        f"container train was given a part of {A} (3000 MiB, 30 %), and nothing on this node holds it to its memory: "
        "the driver does not (allocation is not by slots), and HAMi-core does not hold parts of several GPUs, here of "
        "2; ask for whole GPUs, ask for one GPU in each container, or add unenforced to the daemon's limits"
    )
    assert asked(root, *several, allowed=True) == hami_core
    again = replace(FACTS, has_run=True)
    assert enforcement_for(several, INVENTORY, again, limited(root)).hami_core == hami_core


def test_the_file_with_the_limits_belongs_to_the_daemon_alone(root: Path, hami_core: HamiCore) -> None:
    env = given(root).env
    folder, file = root / "vgpu/overrides/0d4f_train", root / "vgpu/overrides/0d4f_train/overrideEnv"
    text = f"CUDA_DEVICE_MEMORY_LIMIT_0=3000m\nCUDA_DEVICE_SM_LIMIT=30\nCUDA_DEVICE_SM_LIMIT_0=30\n{cache(root)}"
    assert (mode(folder), mode(file), file.read_text()) == (0o755, 0o644, text)
    file.write_text("")
    prepare(str(root), FACTS, env, [str(file)])
    assert file.read_text() == text


def cache(root: Path) -> str:
    folder = f"CUDA_DEVICE_MEMORY_SHARED_CACHE={root}/vgpu/0d4f.cache\nCUDA_REDIRECT={root}/vgpu/libvgpu.so\n"
    return f"{folder}CUDA_DEVICE_ORDER=PCI_BUS_ID\nGPU_CORE_UTILIZATION_POLICY=default\n"


def test_mig_instances_need_no_hami_core(root: Path) -> None:
    instance = DeviceUUID("MIG-0")
    part = DeviceShare(uuid=instance, memory_mib=1000, cores=10)
    known = {instance: a100(instance, 0)}
    assert enforcement_for((part,), known, FACTS, limited(root / "nowhere")).hami_core is None
