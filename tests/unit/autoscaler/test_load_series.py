"""Ticks become steps, and nonsense becomes unknown."""

import math

import pytest

from autoscaler.forecast.series import LoadSeries, Step


def _fed(series: LoadSeries, ticks: list[tuple[float, float | None]]) -> list[Step]:
    return [step for now_s, load in ticks for step in series.add(now_s, 1000.0 + now_s, load)]


def test_seconds_make_steps_of_their_mean() -> None:
    steps = _fed(LoadSeries(5.0), [(second, float(second)) for second in range(1, 11)])
    assert [step.load for step in steps] == [pytest.approx(3.0), pytest.approx(8.0)]
    assert [step.end_local_s for step in steps] == [1005.0, 1010.0]


def test_a_tick_longer_than_a_step_fills_several() -> None:
    steps = _fed(LoadSeries(5.0), [(10.0, 1.0), (20.0, 3.0)])
    assert [step.load for step in steps[-2:]] == [3.0, 3.0]
    assert [step.index for step in steps[-2:]] == [2, 3]


def test_a_tick_across_a_border_counts_on_both_sides() -> None:
    steps = _fed(LoadSeries(4.0), [(4.0, 2.0), (7.0, 0.0), (9.0, 6.0), (12.0, 6.0)])
    assert [step.load for step in steps] == [2.0, pytest.approx(1.5), 6.0]


@pytest.mark.parametrize("load", [None, math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_nonsense_is_unknown_and_not_zero(load: float | None) -> None:
    steps = _fed(LoadSeries(1.0), [(1.0, 3.0), (2.0, load), (3.0, 3.0)])
    assert [step.load for step in steps] == [3.0, None, 3.0]


@pytest.mark.parametrize("now_s", [1.0, 2.0, -50.0, math.nan, math.inf])
def test_a_clock_that_does_not_advance_adds_nothing(now_s: float) -> None:
    series = LoadSeries(1.0)
    _fed(series, [(1.0, 3.0), (2.0, 3.0)])
    assert series.add(now_s, 0.0, 99.0) == []
    assert [step.load for step in series.add(3.0, 0.0, 4.0)] == [4.0]


def test_a_gap_is_unknown_but_for_the_end_that_its_tick_speaks_for() -> None:
    steps = _fed(LoadSeries(10.0), [(10.0, 3.0), (110.0, 5.0)])
    assert [step.load for step in steps] == [3.0, *[None] * 7, 5.0, 5.0, 5.0]


def test_one_wild_second_is_cut_down() -> None:
    steps = _fed(LoadSeries(1.0), [(1.0, 5.0), (2.0, 50_000.0), (3.0, 5.0)])
    assert [step.load for step in steps] == [5.0, 5.0, 5.0]


def test_a_second_wild_tick_confirms_the_first() -> None:
    steps = _fed(LoadSeries(1.0), [(1.0, 5.0), (2.0, 50.0), (3.0, 60.0), (4.0, 70.0)])
    assert [step.load for step in steps] == [5.0, 5.0, 60.0, 70.0]


def test_a_load_that_triples_at_once_is_believed_at_once() -> None:
    steps = _fed(LoadSeries(1.0), [(1.0, 5.0), (2.0, 15.0)])
    assert steps[-1].load == 15.0


def test_a_leap_of_the_clock_costs_no_walk_through_all_of_it() -> None:
    series = LoadSeries(1.0)
    _fed(series, [(1.0, 3.0)])
    assert len(series.add(1e11, 0.0, 3.0)) <= 2_000


def test_a_step_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        LoadSeries(0.0)
