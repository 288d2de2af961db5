"""Forecasts hold as often as they promise, follow what the load does, and survive bad input."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecast.forecaster import DemandForecaster

STEP_S = 10.0


def _feed(
    forecaster: DemandForecaster, loads: "np.ndarray | Sequence[float | None]", from_s: float = 0.0
) -> float:
    now_s = from_s
    for load in loads:
        now_s += STEP_S
        forecaster.observe(now_s, now_s, load)
    return now_s


def _noisy(num: int, mean: float = 50.0, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).gamma(100.0, mean / 100.0, num)


def test_before_anything_is_seen_it_is_blind_and_says_so() -> None:
    forecaster = DemandForecaster(STEP_S)
    assert forecaster.is_blind
    with pytest.raises(ValueError, match="nothing was observed"):
        forecaster.at(60.0)


def test_an_upper_quantile_holds_as_often_as_promised() -> None:
    forecaster = DemandForecaster(STEP_S, level=0.9)
    loads = _noisy(1500)
    _feed(forecaster, loads[:500])
    held = 0
    for i in range(500, 1499):
        forecaster.observe((i + 1) * STEP_S, 0.0, float(loads[i]))
        held += loads[i + 1] <= forecaster.at(STEP_S, 0.9).value
    assert held / 999 == pytest.approx(0.9, abs=0.025)
    coverage = forecaster.record(STEP_S).coverage
    assert coverage == pytest.approx(0.9, abs=0.03)


def test_a_steady_climb_is_expected_to_go_on() -> None:
    forecaster = DemandForecaster(STEP_S)
    _feed(forecaster, np.linspace(10.0, 40.0, 60))
    assert forecaster.at(120.0).centre > 40.0


def test_the_expert_that_is_right_is_heard_most() -> None:
    forecaster = DemandForecaster(STEP_S)
    _feed(forecaster, _noisy(1200))
    weights = {each.name: each.weight for each in forecaster.record(40.0).experts}
    assert weights["ewma"] > weights["last"] > weights["max_hour"] > 0
    assert sum(weights.values()) == pytest.approx(1.0)


def test_a_day_that_was_seen_before_is_foreseen() -> None:
    forecaster = DemandForecaster(300.0)
    day_s = 86_400.0
    for minute in range(5, 4 * 1440, 5):
        at_s = minute * 60.0
        load = 50.0 if 8 <= (at_s % day_s) / 3600 < 20 else 5.0
        forecaster.observe(at_s, at_s, load)
        if minute == 3 * 1440 + 8 * 60 - 15:
            break
    assert forecaster.last == pytest.approx(5.0)
    assert forecaster.at(2400.0, 0.98).value > 40.0


def test_one_wild_second_is_forgotten_at_once() -> None:
    calm, shaken = DemandForecaster(STEP_S), DemandForecaster(STEP_S)
    loads = _noisy(400).tolist()
    _feed(calm, loads)
    _feed(shaken, [*loads[:389], loads[389] * 10_000, *loads[390:]])
    told, expected = (each.at(60.0, 0.98).value for each in (shaken, calm))
    assert told == pytest.approx(expected, rel=0.05)


def test_an_outage_is_blindness_and_not_a_quiet_night() -> None:
    forecaster = DemandForecaster(STEP_S)
    now_s = _feed(forecaster, _noisy(200))
    before = forecaster.at(60.0, 0.98).value
    is_blind = []
    for loads in ([None] * 11, [None]):
        now_s = _feed(forecaster, loads, now_s)
        is_blind.append(forecaster.is_blind)
    assert forecaster.at(60.0, 0.98).value == before
    _feed(forecaster, [50.0], now_s)
    assert [*is_blind, forecaster.is_blind] == [False, True, False]


def test_uncertainty_grows_smoothly_with_the_lead() -> None:
    forecaster = DemandForecaster(STEP_S)
    walk = 50 + np.cumsum(np.random.default_rng(2).normal(0, 0.5, 1500))
    _feed(forecaster, walk)
    said = [forecaster.at(lead_s, 0.98).value for lead_s in range(10, 1800, 10)]
    steps = np.diff(said)
    assert said[-1] > said[0] + 3
    assert float(np.abs(steps).max()) < 0.1 * (said[-1] - said[0])


def test_a_load_of_nothing_stays_near_nothing() -> None:
    forecaster = DemandForecaster(STEP_S)
    _feed(forecaster, np.zeros(500))
    assert forecaster.at(120.0, 0.98).value < 0.5


def test_the_first_load_after_an_idle_time_is_no_jump_from_nothing() -> None:
    idle, fresh = DemandForecaster(STEP_S), DemandForecaster(STEP_S)
    now_s = _feed(idle, [0.0] * 60)
    loads = [1.5, *_noisy(30, 3.0)]  # it began in the middle of a step
    for forecaster, from_s in ((idle, now_s), (fresh, 0.0)):
        _feed(forecaster, loads, from_s)
    assert idle.at(60.0, 0.98).value == pytest.approx(fresh.at(60.0, 0.98).value, rel=0.2)
    assert idle.at(60.0, 0.98).value < 5.0


def test_the_tick_does_not_change_the_forecast() -> None:
    coarse, fine = DemandForecaster(STEP_S), DemandForecaster(STEP_S)
    loads = _noisy(200)
    _feed(coarse, loads)
    for second in range(1, 2001):
        fine.observe(float(second), float(second), float(loads[(second - 1) // 10]))
    assert fine.at(60.0, 0.9).value == pytest.approx(coarse.at(60.0, 0.9).value)


NASTY = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 3.0, 1e5, 1e300)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((*NASTY, 60.0, 7200.0)), st.sampled_from(NASTY))))
def test_no_input_makes_a_forecast_that_is_no_number(ticks: list[tuple[float, float]]) -> None:
    forecaster = DemandForecaster(60.0)
    now_s = 0.0
    for since_s, load in ticks:
        forecaster.observe(now_s + since_s, now_s, load)
        now_s += since_s if 0 < since_s < 10_000 else 0.0
    if not forecaster.is_blind:
        for lead_s in (1.0, 45.0, 1800.0):
            value = forecaster.at(lead_s, 0.98).value
            assert math.isfinite(value)
            assert value >= 0
