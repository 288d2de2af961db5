"""Short-lived folders, and who may remove them."""

import os
from pathlib import Path

import pytest

from deployments.private_dir import LOCK_NAME, PrivateDir, remove_abandoned

MAX_BYTES = 200


def _die(folder: PrivateDir) -> None:
    """What the kernel does for a process that was killed."""
    folder._unlock()


def test_it_is_private_and_goes_where_its_path_is_short_enough(tmp_path: Path) -> None:
    long, short = tmp_path / ("x" * 60), tmp_path / "s"
    long.mkdir()
    short.mkdir()
    max_bytes = len(os.fsencode(short)) + len("/hw-12345678")
    folder = PrivateDir([long, short], max_bytes=max_bytes)
    assert folder.path.parent == short
    assert len(os.fsencode(folder.path)) == max_bytes
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    assert list(short.iterdir()) == []
    folder.remove()


def test_it_says_so_when_no_path_is_short_enough(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 5 bytes"):
        PrivateDir([tmp_path], max_bytes=5)


def test_the_next_one_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    left = PrivateDir([tmp_path], max_bytes=MAX_BYTES)
    (left.path / "logs").mkdir()
    (left.path / "logs" / "x.log").write_text("x", "utf-8")
    _die(left)
    next_one = PrivateDir([tmp_path], max_bytes=MAX_BYTES)
    assert list(tmp_path.iterdir()) == [next_one.path]
    next_one.remove()


def test_a_folder_in_use_a_kept_one_and_a_strangers_stay(tmp_path: Path) -> None:
    used, kept = (PrivateDir([tmp_path], max_bytes=MAX_BYTES) for _ in range(2))
    kept.keep()
    stranger = tmp_path / "hw-strange"
    stranger.mkdir()
    remove_abandoned(tmp_path)
    assert set(tmp_path.iterdir()) == {used.path, kept.path, stranger}
    assert not (kept.path / LOCK_NAME).exists()
    used.remove()


def test_a_child_that_inherited_the_lock_owns_the_folder_too(tmp_path: Path) -> None:
    folder = PrivateDir([tmp_path], max_bytes=MAX_BYTES)
    child = os.dup(folder.lock_descriptor)
    _die(folder)
    remove_abandoned(tmp_path)
    assert folder.path.exists()
    os.close(child)
    remove_abandoned(tmp_path)
    assert not folder.path.exists()
