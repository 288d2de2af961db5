"""What the regression on recent means finds out by itself."""

import numpy as np
import pytest

from autoscaler.forecast.regression import MOST_RATIO, Regression
from autoscaler.forecast.window_means import LAST, WINDOWS, WindowMeans

AHEAD = np.array([1, 12])


def _learned(loads: "np.ndarray | list[float]") -> tuple[Regression, WindowMeans]:
    regression, means = Regression(10.0, AHEAD), WindowMeans()
    for load in loads:
        means.add(float(load))
        regression.observe(float(load), means.now)
    return regression, means


def test_before_it_has_learned_it_says_what_is_there() -> None:
    regression, means = _learned([7.0])
    assert regression.predict(means.now) == pytest.approx([7.0, 7.0])


def test_climbs_that_go_on_are_continued_and_noise_is_averaged() -> None:
    triangle = 50 + 40 * np.abs((np.arange(4000) % 120) / 60 - 1)
    regression, means = _learned(triangle[: 120 * 30 + 90])  # on the way up
    assert regression.predict(means.now)[1] > means.now[LAST] + 4
    noise = np.random.default_rng(1).gamma(25.0, 2.0, 4000)
    regression, means = _learned(noise)
    said = abs(regression.predict(means.now)[1] - 50.0)
    assert said < 3


def test_a_jump_far_beyond_all_is_followed_within_bounds() -> None:
    regression, means = _learned([3.0] * 200 + [300.0])
    assert float(regression.predict(means.now).max()) <= MOST_RATIO * means.now[LAST]


def test_window_means_are_means_of_the_last_steps() -> None:
    loads = np.random.default_rng(3).gamma(4.0, 2.0, 1000)
    means = WindowMeans()
    for load in loads:
        means.add(float(load))
    assert means.now == pytest.approx([loads[-length:].mean() for length in WINDOWS])
    means.clear()
    means.add(5.0)
    assert means.now == pytest.approx([5.0] * len(WINDOWS))
