"""Jitter and errors are measured for what they are, and quantiles follow their shape."""

from statistics import NormalDist

import numpy as np
import pytest

from autoscaler.forecast.spread import MOST_NORMAL, Errors, Jitter, Ratios, magnitude

ALL = np.array([0, 1])
AHEAD = np.array([1, 30])


def test_jitter_is_the_deviation_of_steps_whatever_the_load_does_slowly() -> None:
    draw = np.random.default_rng(1)
    seen = []
    for slope in (0.0, 0.05):
        jitter = Jitter()
        for step in range(400):
            jitter.observe(50.0 + slope * step + draw.normal(0.0, 3.0))
            if step > 100:
                seen.append(jitter.deviation(50.0 + slope * step))
    assert float(np.mean(seen)) == pytest.approx(3.0, rel=0.1)


def test_errors_follow_what_was_off_of_late_and_grow_with_the_load() -> None:
    errors = Errors(AHEAD, 1)
    for off in [1.0] * 300 + [4.0] * 60:
        errors.score(ALL, np.array([[off], [off]]), 50.0)
    near, far = errors.deviations(50.0)[:, 0] / 1.2533
    assert near == pytest.approx(3.6, abs=0.2)
    assert far == pytest.approx(2.9, abs=0.3)
    assert errors.deviations(100.0)[0, 0] / errors.deviations(50.0)[0, 0] == pytest.approx(
        magnitude(100.0) / magnitude(50.0)
    )


def test_quantiles_are_normal_at_first_and_then_those_of_what_was_seen() -> None:
    ratios = Ratios(10.0, AHEAD)
    assert ratios.quantile(0, 0.98) == pytest.approx(NormalDist().inv_cdf(0.98), abs=0.05)
    draw = np.random.default_rng(2)
    for ratio in draw.exponential(1.0, 8000):
        ratios.score(ALL[:1], np.array([ratio]))
    assert ratios.quantile(0, 0.9) == pytest.approx(np.log(10), rel=0.1)


def test_a_few_wild_errors_do_not_make_the_quantile() -> None:
    ratios = Ratios(10.0, AHEAD)
    for _ in range(100):
        ratios.score(ALL, np.array([15.0, 15.0]))
    most = MOST_NORMAL * NormalDist().inv_cdf(0.98)
    assert ratios.quantile(0, 0.98) == pytest.approx(most)
    # Of a long horizon a hundred steps are but a few errors.
    assert ratios.quantile(1, 0.9) < most / 2
