import threading
from pathlib import Path

import pytest

from engine.checkpoints.staging import clean_up, staged
from engine.checkpoints.store import checkpoint_path


def test_nothing_is_in_place_before_the_commit(tmp_path: Path) -> None:
    with staged(tmp_path, "model") as staging:
        (staging.new / "file").write_text("new")
        assert not checkpoint_path(tmp_path, "model").exists()
        staging.commit()
    assert (checkpoint_path(tmp_path, "model") / "file").read_text() == "new"


def test_an_error_before_the_commit_keeps_nothing_but_downloads(tmp_path: Path) -> None:
    def fail() -> None:
        with staged(tmp_path, "model") as staging:
            (staging.new / "file").write_text("half")
            (staging.open_downloads("source 1") / "part").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    left = {path.name for path in (tmp_path / "models/.staging/model").iterdir()}
    assert left == {"lock", "downloads"}
    assert not checkpoint_path(tmp_path, "model").exists()


def test_downloads_are_kept_for_the_same_version_only(tmp_path: Path) -> None:
    with staged(tmp_path, "model") as staging:
        first = staging.open_downloads("source 1")
        (first / "part").write_text("half")
    with staged(tmp_path, "model") as staging:
        assert staging.open_downloads("source 1") == first
        assert (first / "part").read_text() == "half"
        staging.open_downloads("source 2")
        assert not first.exists()


def test_downloads_end_with_the_commit_that_used_them(tmp_path: Path) -> None:
    with staged(tmp_path, "model") as staging:
        staging.open_downloads("source 1")
        staging.commit()
        assert not staging.downloads.exists()


def test_a_removal_takes_checkpoint_and_downloads(tmp_path: Path) -> None:
    checkpoint_path(tmp_path, "model").mkdir(parents=True)
    with staged(tmp_path, "model") as staging:
        staging.open_downloads("source 1")
        staging.remove()
        assert not staging.downloads.exists()
    assert not checkpoint_path(tmp_path, "model").exists()


def test_a_killed_removal_does_not_bring_the_checkpoint_back(tmp_path: Path) -> None:
    removed = tmp_path / "models" / ".staging" / "model" / "removed"
    removed.mkdir(parents=True)
    with staged(tmp_path, "model") as staging:
        assert not removed.exists()
        assert not staging.final.exists()


def test_what_a_killed_pull_left_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "models" / ".staging" / "model" / "new"
    leftover.mkdir(parents=True)
    (leftover / "half.safetensors").write_text("half")
    with staged(tmp_path, "model") as staging:
        assert list(staging.new.iterdir()) == []


def test_a_checkpoint_caught_between_two_renames_is_put_back(tmp_path: Path) -> None:
    replaced = tmp_path / "models" / ".staging" / "model" / "old"
    replaced.mkdir(parents=True)
    (replaced / "file").write_text("old")
    with staged(tmp_path, "model") as staging:
        assert (staging.final / "file").read_text() == "old"


def killed_after_commit(home: Path) -> Path:
    """The folder of downloads that it left."""
    checkpoint_path(home, "model").mkdir(parents=True)
    downloads = home / "models" / ".staging" / "model" / "downloads"
    downloads.mkdir(parents=True)
    return downloads


def test_what_a_pull_left_that_was_killed_after_its_commit_is_deleted(tmp_path: Path) -> None:
    downloads = killed_after_commit(tmp_path)
    clean_up(tmp_path, "model")
    assert not downloads.exists()
    assert checkpoint_path(tmp_path, "model").exists()


def test_nothing_is_deleted_under_the_hands_of_whoever_is_at_work(tmp_path: Path) -> None:
    downloads = killed_after_commit(tmp_path)
    with staged(tmp_path, "model"):
        clean_up(tmp_path, "model")
        assert downloads.exists()


def test_downloads_for_a_checkpoint_that_is_not_there_yet_are_kept(tmp_path: Path) -> None:
    downloads = killed_after_commit(tmp_path)
    checkpoint_path(tmp_path, "model").rmdir()
    clean_up(tmp_path, "model")
    assert downloads.exists()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    inside = 0
    most_inside = 0

    def write() -> None:
        nonlocal inside, most_inside
        with staged(tmp_path, "model") as staging:
            inside += 1
            most_inside = max(most_inside, inside)
            (staging.new / "file").write_text("new")
            staging.commit()
            inside -= 1

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most_inside == 1
