"""How long a queue takes to drain while a replica is on its way."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.wait_estimate import drain_s


def test_without_help_it_is_jobs_by_rate() -> None:
    assert drain_s(30, 2.0, num_engines=2, next_ready_s=None) == 15.0
    assert drain_s(30, 2.0, num_engines=2, next_ready_s=20.0) == 15.0, "help comes too late"


def test_help_counts_from_when_it_is_there() -> None:
    # 20 leave in 10 s; the other 10 at 3 per second instead of 2.
    assert drain_s(30, 2.0, num_engines=2, next_ready_s=10.0) == pytest.approx(10 + 10 / 3)


def test_nothing_known_is_no_wait() -> None:
    assert drain_s(30, None, num_engines=0, next_ready_s=3.0) == 0.0


ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(ANY, st.none() | ANY, st.integers(-1, 1000), st.none() | ANY)
@example(math.inf, 1.0, 1, 1.0)
@example(1e300, 1e-300, 1, 1.0)
@example(1.0, 1.7e308, 1, 0.0)
def test_it_is_a_time_whatever_it_is_given(
    num_jobs: float, rate_per_s: float | None, num_engines: int, next_ready_s: float | None
) -> None:
    wait_s = drain_s(num_jobs, rate_per_s, num_engines=num_engines, next_ready_s=next_ready_s)
    assert wait_s >= 0
    assert math.isfinite(wait_s)
    alone_s = drain_s(num_jobs, rate_per_s, num_engines=num_engines, next_ready_s=None)
    assert wait_s <= alone_s * (1 + 1e-9), "help makes nothing slower"
