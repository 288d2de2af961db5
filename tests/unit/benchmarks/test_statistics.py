"""Percentiles and paired ratios against numbers worked out by hand and against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.statistics import PairedRatio, paired_ratio, percentile


def test_percentile_interpolates_between_the_nearest_ranks() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert percentile(values, 0.0) == 10.0
    assert percentile(values, 50.0) == 25.0
    assert percentile(values, 90.0) == pytest.approx(37.0)
    assert percentile(values, 100.0) == 40.0


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    st.floats(0.0, 100.0),
)
def test_percentile_is_that_of_numpy(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert math.isclose(percentile(values, percent), expected, rel_tol=1e-9, abs_tol=1e-6)


def test_percentile_of_nothing_and_beyond_the_range_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 50.0)
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 101.0)


def test_paired_ratio_is_the_median_of_ratios_and_not_the_ratio_of_medians() -> None:
    ratio = paired_ratio([2.0, 20.0, 3.0, 400.0, 10.0], [1.0, 10.0, 3.0, 100.0, 2.0])
    # Ratios: 2, 2, 1, 4, 5.
    assert ratio == PairedRatio(median=2.0, q1=2.0, q3=4.0, num_pairs=5)


def test_paired_ratio_cancels_drift_common_to_both_sides() -> None:
    drift = [1.0, 1.5, 2.0, 4.0, 8.0, 3.0]
    ratio = paired_ratio([3.0 * d for d in drift], [2.0 * d for d in drift])
    assert (ratio.q1, ratio.median, ratio.q3) == pytest.approx((1.5, 1.5, 1.5))


def test_fewer_than_five_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 5 pairs, got 4"):
        paired_ratio([1.0] * 4, [1.0] * 4)
    with pytest.raises(ValueError, match="at least 5 pairs, got 4"):
        PairedRatio(median=1.0, q1=1.0, q3=1.0, num_pairs=4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_peer_that_cannot_be_divided_by_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite values"):
        paired_ratio([1.0] * 5, [1.0, 1.0, bad, 1.0, 1.0])


def test_incomplete_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="complete, got 6 and 5"):
        paired_ratio([1.0] * 6, [1.0] * 5)
