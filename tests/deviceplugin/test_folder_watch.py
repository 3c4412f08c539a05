"""The kernel tells of a file, in whatever folder has the name now."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.folder_watch import FolderWatch

LONG = 60.0


@pytest.fixture
async def watch(tmp_path: Path) -> AsyncIterator[FolderWatch]:
    watch = FolderWatch(str(tmp_path / "plugins"), "kubelet.sock")
    yield watch
    watch.close()


async def test_a_file_that_comes_is_replaced_or_goes_ends_the_wait(watch: FolderWatch, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    assert watch.begin()
    (folder / "kubelet.sock").touch()
    await asyncio.wait_for(watch.wait(LONG), LONG / 2)
    (folder / "other").touch()
    os.replace(folder / "other", folder / "kubelet.sock")
    await asyncio.wait_for(watch.wait(LONG), LONG / 2)
    (folder / "kubelet.sock").unlink()
    await asyncio.wait_for(watch.wait(LONG), LONG / 2)


async def test_other_files_of_the_folder_do_not(watch: FolderWatch, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    assert watch.begin()
    (tmp_path / "plugins" / "kubelet_internal_checkpoint").touch()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.wait(LONG), 0.1)


async def test_a_folder_that_is_made_later_or_made_again_is_watched_from_the_next_beginning(
    watch: FolderWatch, tmp_path: Path
) -> None:
    folder = tmp_path / "plugins"
    assert not watch.begin()
    for _ in range(2):
        folder.mkdir()
        assert watch.begin()
        (folder / "kubelet.sock").touch()
        await asyncio.wait_for(watch.wait(LONG), LONG / 2)
        (folder / "kubelet.sock").unlink()
        await asyncio.wait_for(watch.wait(LONG), LONG / 2)
        folder.rmdir()
        await asyncio.wait_for(watch.wait(LONG), LONG / 2)
