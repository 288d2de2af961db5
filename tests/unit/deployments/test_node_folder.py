"""Where engines find their node's cache."""

import os
from pathlib import Path

import pytest

from deployments.node_folder import MAX_SOCKET_PATH_BYTES, NodeFolder


def test_each_cache_of_a_node_has_the_same_folder_and_each_node_its_own(tmp_path: Path) -> None:
    first = NodeFolder([tmp_path], "node-a")
    assert not first.path.exists()
    first.make()
    first.make()
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert NodeFolder([tmp_path], "node-a").socket_path == first.socket_path
    assert NodeFolder([tmp_path], "node-b").socket_path != first.socket_path
    first.remove()
    assert not first.path.exists()
    first.remove()


def test_a_root_with_too_long_a_path_is_passed_over(tmp_path: Path) -> None:
    long_root = tmp_path / ("x" * MAX_SOCKET_PATH_BYTES)
    assert NodeFolder([long_root, tmp_path], "n").path.parent == tmp_path
    with pytest.raises(ValueError, match="unset TMPDIR"):
        NodeFolder([long_root], "n")


@pytest.mark.parametrize("what", ["link", "open"])
def test_a_folder_that_others_could_write_to_is_refused(tmp_path: Path, what: str) -> None:
    node_folder = NodeFolder([tmp_path], "n")
    node_folder.make()
    folder = node_folder.path
    if what == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        os.chmod(folder, 0o770)
    with pytest.raises(ValueError, match="remove it"):
        node_folder.make()
