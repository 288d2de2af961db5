import pytest

from benchmarks.cache_tiers_pairs import Pairs
from benchmarks.cold_start_rungs import held, reached


def test_a_rung_is_held_against_its_share_of_the_medium() -> None:
    pairs = Pairs(ours=[1.0] * 5, theirs=[0.9] * 5)
    result = held(pairs, 2_000_000_000, "made_disk", "plain read")
    assert result.value == pytest.approx(2.0)
    assert result.limit == pytest.approx(0.85 * 2.0 / 0.9)
    assert result.of_limit is not None
    assert result.of_limit == pytest.approx(0.9 / 0.85)


def test_the_projection_gets_each_rung_by_its_name() -> None:
    pairs = Pairs(ours=[2.0] * 5, theirs=[1.0] * 5)
    names = ("store", "store_behind_link", "disk", "peer", "staged_mapped", "staged_read")
    results = [held(pairs, 1_000_000_000, f"made_{name}", "medium") for name in names]
    rungs = reached(results, "made")
    assert set(rungs) == {"store", "disk", "peer", "staged"}
    assert rungs["disk"].bytes_per_s == pytest.approx(0.5e9)
    assert rungs["disk"].share_of_medium == pytest.approx(0.5)
