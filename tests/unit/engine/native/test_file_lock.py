"""A lock says whether it is held."""

from pathlib import Path

from engine.native.file_lock import held_lock


def test_one_holds_it_and_the_next_goes_on_without(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_lock(path, limit_s=0) as first:
        with held_lock(path, limit_s=0.01) as second:
            assert (first, second) == (True, False)
        with held_lock(path, limit_s=0) as third:  # what did not hold it did not let it go
            assert not third
    with held_lock(path, limit_s=0) as after:
        assert after
