"""Percentiles of the last minutes out of histograms."""

import pytest

from deployments.length_window import WINDOW_S, LengthWindow, num_above


def one(bucket: int, number: float) -> list[float]:
    return [number if b == bucket else 0.0 for b in range(20)]


def test_too_few_values_say_nothing() -> None:
    window = LengthWindow(20)
    window.add(one(3, 5), 0.0)
    assert window.percentile(0.95) is None


def test_what_is_old_is_forgotten() -> None:
    window = LengthWindow(20)
    for second in range(60):
        window.add(one(12, 10), float(second))
    assert window.percentile(0.95) == 8
    for second in range(60, 60 + int(WINDOW_S) + 20):
        window.add(one(4, 1), float(second))
    assert window.percentile(0.95) == 2


def test_a_percentile_is_the_end_of_its_bucket() -> None:
    window = LengthWindow(20)
    window.add(one(4, 94), 0.0)
    window.add(one(8, 6), 1.0)
    assert (window.percentile(0.5), window.percentile(0.95)) == (2, 4)


def test_values_of_the_bucket_in_between_count_in_part() -> None:
    counts = [0.0, 10.0, 10.0, 10.0, 10.0, 0.0]
    assert num_above(counts, 0.1) == 40
    assert num_above(counts, 2.0) == 0
    assert num_above(counts, 2**0.5) == pytest.approx(20)
    assert 20 < num_above(counts, 1.3) < 30


def test_the_last_bucket_holds_all_that_is_longer() -> None:
    assert num_above([0.0, 0.0, 7.0], 1e9) == 7
