import time
from pathlib import Path

import pytest

from benchmarks.object_store import Link
from benchmarks.pulling import Contest, measure, parse_options, write_model


def test_pairs_are_interleaved_and_who_begins_changes(tmp_path: Path) -> None:
    order: list[str] = []

    def run(name: str, duration_s: float, target: Path) -> float:
        target.mkdir()
        order.append(name)
        return duration_s

    contest = Contest(
        "case",
        lambda target: run("ours", 2.0, target),
        "peer",
        lambda target: run("theirs", 1.0, target),
        limit_mb_per_s=100.0,
    )
    result = measure(contest, 5, 100_000_000, tmp_path)

    assert order == ["ours", "theirs", "theirs", "ours"] * 2 + ["ours", "theirs"]
    assert (result.value, result.peer_value, result.of_limit) == (50.0, 100.0, 0.5)
    assert result.ratio is not None
    assert result.ratio.median == 0.5


def test_a_link_gives_all_who_use_it_its_bandwidth_together() -> None:
    link = Link(bytes_per_s=1_000_000)
    started_s = time.monotonic()
    for _ in range(5):
        link.pass_through(10_000)
    assert time.monotonic() - started_s >= 0.05


def test_the_model_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    assert 1_000_000 <= write_model(tmp_path, 1) < 1_010_000


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(SystemExit):
        parse_options(["--out", "x.json", "--pairs", "4"])
