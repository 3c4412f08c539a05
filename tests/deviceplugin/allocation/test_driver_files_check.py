from deviceplugin.allocation.kept_answers import is_outdated
from deviceplugin.container.edits import Mount

NOW = tuple(
    Mount(container_path=f"/usr/lib64/{name}", host_path=f"/d/{name}.550.90.07", read_only=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1")
)
THEN = {mount.container_path: mount.host_path for mount in NOW}


def test_an_answer_is_outdated_once_any_file_of_the_driver_is_another() -> None:
    assert not is_outdated(THEN, NOW)
    assert is_outdated(THEN | {"/usr/lib64/libnvidia-ml.so.1": "/d/libnvidia-ml.so.1.535.54.03"}, NOW)


def test_mounts_of_others_and_files_that_came_later_do_not_matter() -> None:
    assert not is_outdated({"/usr/lib64/libcuda.so.1": "/d/libcuda.so.1.550.90.07", "/data": "/other"}, NOW)
