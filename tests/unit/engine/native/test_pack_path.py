"""Packed weights are mapped where they lie, or where they can be written."""

from pathlib import Path

import pytest

from engine.config import EngineConfig, RankSpec
from engine.native.pack_path import can_map, packed_path


def test_ranks_and_dtypes_have_files_of_their_own(tmp_path: Path) -> None:
    paths = {
        packed_path(tmp_path, EngineConfig(), RankSpec(0, 1)),
        packed_path(tmp_path, EngineConfig(), RankSpec(0, 2)),
        packed_path(tmp_path, EngineConfig(), RankSpec(1, 2)),
        packed_path(tmp_path, EngineConfig(quantization="int8"), RankSpec(0, 1)),
    }
    assert len(paths) == 4


@pytest.mark.parametrize(
    ("num_there", "num_bytes", "expected"),
    [(0, 1, True), (0, 2**62, False), (1, 2**62, False), (2, 2**62, True)],
)
def test_what_is_not_there_must_fit_on_the_disk(
    tmp_path: Path, num_there: int, num_bytes: int, *, expected: bool
) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    for path in paths[:num_there]:
        path.touch()
    assert can_map(paths, num_bytes) is expected


def test_a_folder_that_cannot_be_written_maps_nothing(tmp_path: Path) -> None:
    assert not can_map([tmp_path / "absent" / "0"], 1)
