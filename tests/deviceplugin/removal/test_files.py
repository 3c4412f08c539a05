import socket
from pathlib import Path

from deviceplugin.cli.uninstalling import find, remove
from deviceplugin.removal import Folders, Ours

OURS = Ours(resource="nvidia.com/gpu")


def folders(root: Path) -> Folders:
    return Folders(
        slots=f"{root}/cdi",
        specs=f"{root}/run/cdi",
        hami_core=f"{root}/vgpu",
        locks=f"{root}/locks",
        plugins=f"{root}/plugins",
    )


def test_a_socket_is_served_while_somebody_listens(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    path = f"{tmp_path}/plugins/nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(path)
        plugin.listen()
        assert find(folders(tmp_path), OURS).served == (path,)
    found = find(folders(tmp_path), OURS)
    assert (found.names, found.served) == ({f"{tmp_path}/plugins": ("nvidia-gpu.sock",)}, ())


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    hami_core = tmp_path / "vgpu"
    (hami_core / "containers/uid_main").mkdir(parents=True)
    (hami_core / "containers/uid_main/escape").symlink_to(precious)
    (hami_core / "locks").symlink_to(precious)
    gone = tmp_path / "gone"
    assert remove([str(hami_core / "containers"), str(hami_core / "locks"), str(gone)], str(hami_core)) == {}
    assert (hami_core.exists(), [path.name for path in precious.iterdir()]) == (False, ["file"])


def test_a_folder_with_something_of_others_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "vgpu").mkdir()
    (tmp_path / "vgpu/theirs").touch()
    assert remove([], str(tmp_path / "vgpu")) == {}
    assert (tmp_path / "vgpu/theirs").exists()


def test_what_cannot_be_removed_is_told_and_the_rest_goes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    under_a_file = f"{tmp_path}/file/below"
    (tmp_path / "other").touch()
    kept = remove([under_a_file, f"{tmp_path}/other"], f"{tmp_path}/vgpu")
    assert kept == {under_a_file: f"{under_a_file} cannot be removed: Not a directory."}
    assert not (tmp_path / "other").exists()
