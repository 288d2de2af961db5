"""Values from the process environment."""

import shutil
import tempfile
from pathlib import Path

import pytest

from deployments.environment import child_environment, headwater_home, make_private_dir


def test_home_is_the_variable_or_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_HOME", "/srv/models")
    assert headwater_home() == Path("/srv/models")
    monkeypatch.delenv("HEADWATER_HOME")
    assert headwater_home() == Path.home() / ".cache" / "headwater"


def test_a_child_gets_the_environment_with_the_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    child = child_environment({"CHANGED": "2"})
    assert (child["KEPT"], child["CHANGED"]) == ("1", "2")


def test_a_private_dir_is_private_and_short_even_where_tmpdir_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = make_private_dir("hw-", max_bytes=30)
    try:
        assert folder.parent == Path("/tmp")
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(folder)


def test_it_says_so_when_no_path_is_short_enough() -> None:
    with pytest.raises(ValueError, match="at most 5 bytes"):
        make_private_dir("hw-", max_bytes=5)
