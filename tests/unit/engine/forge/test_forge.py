"""Where a forge may listen."""

from pathlib import Path

import pytest

from engine.forge.forge import Forge


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(ValueError, match="is no folder of this user alone: remove it"):
        Forge(folder / "forge.sock", "code")
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_not_there_is_made_for_this_user_alone(tmp_path: Path) -> None:
    socket_path = tmp_path / "new" / "forge.sock"
    Forge(socket_path, "code").close()
    assert socket_path.parent.stat().st_mode & 0o777 == 0o700


def test_the_socket_of_a_forge_that_was_killed_is_replaced(tmp_path: Path) -> None:
    socket_path = tmp_path / "new" / "forge.sock"
    Forge(socket_path, "code").close()
    Forge(socket_path, "code").close()
    assert socket_path.is_socket()
