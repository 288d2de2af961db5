from pathlib import Path

import pytest

from benchmarks.cold_start_media import REQUEST_BYTES, Span, spans_of
from benchmarks.cold_start_model import LARGE, Shape, num_bytes_of, write_checkpoint
from engine.checkpoints.soundness import check_description
from engine.checkpoints.store import open_checkpoint

TINY = Shape(64, 128, num_layers=2, vocab=100, num_shards=2)


def test_it_opens_and_describes_a_model_that_the_engine_runs(tmp_path: Path) -> None:
    manifest = write_checkpoint(tmp_path / "model", TINY)
    checkpoint = open_checkpoint(tmp_path / "model", weights_sha256=manifest.weights_sha256)
    check_description({"config.json": checkpoint.path / "config.json"}, where="it")
    assert len(checkpoint.weights_paths) == 2
    paths = list(checkpoint.path.iterdir())
    content = [path for path in paths if path.name != "headwater.json"]
    assert num_bytes_of(manifest) == sum(path.stat().st_size for path in content)


def test_another_seed_makes_other_weights(tmp_path: Path) -> None:
    digests = [
        write_checkpoint(tmp_path / name, TINY, seed=seed).weights_sha256
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 2


def test_the_large_one_has_at_least_four_gigabytes() -> None:
    num_elements = 0
    for _, shape in LARGE.tensors():
        size = 1
        for length in shape:
            size *= length
        num_elements += size
    assert 2 * num_elements >= 4e9


@pytest.mark.parametrize(
    ("sizes", "spans"),
    [
        ([0, 5], [Span(1, 0, 5)]),
        ([REQUEST_BYTES], [Span(0, 0, REQUEST_BYTES)]),
        (
            [REQUEST_BYTES + 1],
            [Span(0, 0, REQUEST_BYTES), Span(0, REQUEST_BYTES, REQUEST_BYTES + 1)],
        ),
    ],
)
def test_requests_cover_all_bytes_once(sizes: list[int], spans: list[Span]) -> None:
    assert spans_of(sizes) == spans
