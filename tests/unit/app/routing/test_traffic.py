"""How much a gateway sends."""

import pytest

from app.routing.traffic import TrafficMeter


def test_a_steady_stream_is_known_within_seconds_and_stays_so() -> None:
    meter = TrafficMeter()
    assert (meter.requests_per_s(0.0), meter.mean_uncached_tokens) == (0, 0)
    for number in range(2000):
        meter.record(number / 4, 1000)
        if number >= 40:
            assert meter.requests_per_s(number / 4) == pytest.approx(4, rel=0.05)
    assert meter.mean_uncached_tokens == pytest.approx(1000)


def test_silence_lowers_the_rate_but_not_the_size() -> None:
    meter = TrafficMeter()
    for number in range(100):
        meter.record(number / 4, 500)
    assert meter.requests_per_s(25 + 300) < 0.01
    assert meter.mean_uncached_tokens == pytest.approx(500)


def test_a_burst_at_the_start_is_no_rate() -> None:
    meter = TrafficMeter()
    for _ in range(10):
        meter.record(5.0, 1)
    assert meter.requests_per_s(5.0) == pytest.approx(10)


def test_others_are_expected_to_send_as_soon_as_one_request_came() -> None:
    meter = TrafficMeter()
    meter.record(5.0, 700)
    assert (meter.requests_per_s(5.0), meter.mean_uncached_tokens) == (1, 700)
    meter.record(5.0 + 3600, 700)
    assert meter.requests_per_s(5.0 + 3600) < 0.05


def test_a_clock_that_steps_back_starts_anew() -> None:
    meter = TrafficMeter()
    for number in range(1000):
        meter.record(1000 + number / 100, 1)
    for number in range(100):
        meter.record(number / 2, 7)
    assert meter.requests_per_s(50.0) == pytest.approx(2, rel=0.05)
    assert meter.mean_uncached_tokens == pytest.approx(7)
