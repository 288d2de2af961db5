"""How reports change what is believed of an engine's cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.doubt import HitDoubt


def test_an_engine_is_believed_until_something_speaks_against_it() -> None:
    doubt = HitDoubt()
    assert doubt.hit_probability("e0", 0.0) == 1.0
    doubt.learn("e0", 10, 10, 1.0)
    doubt.learn("e0", 10, 25, 2.0)
    assert doubt.hit_probability("e0", 3.0) == 1.0


def test_one_miss_widens_the_doubt_a_little_and_many_much() -> None:
    doubt = HitDoubt()
    doubt.learn("e0", 1000, 0, 0.0)
    assert doubt.hit_probability("e0", 0.0) == pytest.approx(0.8)
    for _ in range(30):
        doubt.learn("e0", 10, 0, 0.0)
    assert doubt.hit_probability("e0", 0.0) < 0.25
    assert doubt.hit_probability("e1", 0.0) == 1.0


def test_it_comes_to_the_share_that_is_found() -> None:
    doubt = HitDoubt()
    for number in range(200):
        doubt.learn("e0", 12, 9 if number % 2 else 6, number / 100)
    assert doubt.hit_probability("e0", 2.0) == pytest.approx(0.625 + 0.375 * 4 / 28, abs=0.02)


def test_doubt_fades_with_time_and_with_predictions_that_come_true() -> None:
    doubt = HitDoubt()
    for _ in range(10):
        doubt.learn("e0", 10, 0, 100.0)
    at_once = doubt.hit_probability("e0", 100.0)
    assert at_once < doubt.hit_probability("e0", 130.0) < doubt.hit_probability("e0", 200.0)
    assert doubt.hit_probability("e0", 1000.0) == pytest.approx(1.0, abs=1e-6)
    for _ in range(60):
        doubt.learn("e0", 10, 10, 100.0)
    assert doubt.hit_probability("e0", 100.0) > 0.95


def test_an_engine_that_left_is_forgotten() -> None:
    doubt = HitDoubt()
    doubt.learn("e0", 10, 0, 0.0)
    doubt.forget("e0")
    doubt.forget("e0")
    assert doubt.hit_probability("e0", 0.0) == 1.0


COUNTS = st.integers(-5, 2000)
TIMES = st.floats(-1e9, 1e9)


@given(st.lists(st.tuples(COUNTS, COUNTS, TIMES), max_size=30), TIMES)
def test_it_stays_a_probability_whatever_is_reported_and_however_clocks_jump(
    reports: list[tuple[int, int, float]], now_s: float
) -> None:
    doubt = HitDoubt()
    for num_predicted, num_found, at_s in reports:
        doubt.learn("e0", num_predicted, num_found, at_s)
    assert 0.0 < doubt.hit_probability("e0", now_s) <= 1.0
