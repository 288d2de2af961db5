import pytest

from engine.weights.throttle import Throttle


class Time:
    """Goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def read(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def throttle(time: Time, max_bytes_per_s: float | None) -> Throttle:
    return Throttle(max_bytes_per_s, clock=time.read, sleep=time.sleep)


def test_readers_get_the_rate_and_no_more() -> None:
    time = Time()
    slowed = throttle(time, 1000)
    for _ in range(50):
        slowed.pass_through(100)
    assert time.now_s == pytest.approx(105)


def test_a_pause_of_the_source_is_not_made_up_for() -> None:
    time = Time()
    slowed = throttle(time, 1000)
    time.now_s += 3600
    slowed.pass_through(500)
    assert time.now_s - 3700 == 0.5


def test_without_a_rate_nobody_waits() -> None:
    time = Time()
    throttle(time, None).pass_through(1 << 40)
    assert time.now_s == 100
