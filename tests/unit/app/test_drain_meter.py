"""Estimated waits against simulated ones."""

import random
from collections import deque
from statistics import fmean

import pytest

from app.drain_meter import DrainMeter


def test_nothing_is_known_before_a_few_have_left() -> None:
    meter = DrainMeter()
    meter.set_waiting(0.0, is_waiting=True)
    meter.departed(1.0)
    assert meter.rate_per_s(1.0) is None
    meter.departed(2.0)
    assert meter.rate_per_s(2.0) is None
    meter.departed(3.0)
    assert meter.rate_per_s(3.0) == pytest.approx(1.0, rel=0.1)


def test_time_without_anybody_waiting_does_not_count() -> None:
    meter = DrainMeter()
    meter.set_waiting(0.0, is_waiting=True)
    for second in range(1, 11):
        meter.departed(float(second))
    meter.set_waiting(10.0, is_waiting=False)
    before = meter.rate_per_s(10.0)
    assert meter.rate_per_s(1000.0) == before
    meter.set_waiting(1000.0, is_waiting=True)
    meter.departed(1000.5)
    assert meter.rate_per_s(1000.5) == pytest.approx(before, rel=0.2)


def test_a_slower_engine_shows_within_its_memory() -> None:
    meter = DrainMeter()
    meter.set_waiting(0.0, is_waiting=True)
    for tenth in range(1, 601):
        meter.departed(tenth / 10)  # ten a second
    assert meter.rate_per_s(60.0) == pytest.approx(10.0, rel=0.05)
    for second in range(61, 151):
        meter.departed(float(second))  # one a second
    assert meter.rate_per_s(150.0) == pytest.approx(1.0, rel=0.5)


@pytest.mark.parametrize("seed", range(3))
def test_estimates_hold_in_a_steady_overload(seed: int) -> None:
    """32 places, answers of 10 s in the mean, 4 requests a second: a queue of 100 keeps growing."""
    draw = random.Random(seed)
    meter = DrainMeter()
    now_s, busy_until = 0.0, [draw.expovariate(0.1) for _ in range(32)]
    waiting: deque[tuple[float, float | None]] = deque((0.0, None) for _ in range(60))
    meter.set_waiting(0.0, is_waiting=True)
    estimated, actual = [], []
    while now_s < 200.0:
        arrival_s = now_s + draw.expovariate(4.0)
        while min(busy_until) < arrival_s:
            now_s = min(busy_until)
            busy_until.remove(now_s)
            busy_until.append(now_s + draw.expovariate(0.1))
            arrived_s, estimate_s = waiting.popleft()
            meter.departed(now_s)
            if estimate_s is not None and arrived_s > 30.0:
                estimated.append(estimate_s)
                actual.append(now_s - arrived_s)
        now_s = arrival_s
        rate = meter.rate_per_s(now_s)
        waiting.append((now_s, None if rate is None else (len(waiting) + 1) / rate))
    assert len(actual) > 100
    errors = [abs(e - a) / a for e, a in zip(estimated, actual, strict=True)]
    assert fmean(errors) < 0.3
    assert fmean(estimated) == pytest.approx(fmean(actual), rel=0.15)
