"""Learning how fast media are."""

import math
import random

import pytest

from cache_tiers.media_rates import PRIOR_RATES, MediaRates
from cache_tiers.tier import TierKind

DISK = TierKind.DISK
MIB = 1024**2


class Clock:
    """Stands still unless a test moves it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_finds_latency_and_bandwidth_in_noise() -> None:
    rates, draw = MediaRates(Clock()), random.Random(0)
    for _ in range(300):
        num_bytes = draw.choice([MIB, 4 * MIB, 16 * MIB])
        rates.observe(DISK, num_bytes, (0.005 + num_bytes / 3e9) * draw.uniform(0.9, 1.1))
    assert rates.rate(DISK).latency_s == pytest.approx(0.005, rel=0.1)
    assert 1 / rates.rate(DISK).byte_s == pytest.approx(3e9, rel=0.2)


def test_what_changed_is_believed_soon() -> None:
    rates = MediaRates(Clock())
    for byte_s, num_loads in ((1e-9, 200), (1e-8, 50)):
        for _ in range(num_loads):
            rates.observe(DISK, 16 * MIB, 0.001 + 16 * MIB * byte_s)
    assert rates.rate(DISK).seconds(16 * MIB) == pytest.approx(0.169, rel=0.25)


def test_one_size_alone_leaves_a_sane_line() -> None:
    rates = MediaRates(Clock())
    for _ in range(1000):
        rates.observe(DISK, MIB, 0.01)
    rate = rates.rate(DISK)
    assert rate.latency_s >= 0
    assert rate.byte_s > 0
    assert rate.seconds(MIB) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("times", [0.1, 0.5, 2.0, 10.0])
def test_what_lasts_is_believed_within_some_transfers(times: float) -> None:
    rates = MediaRates(Clock())
    for number in range(240):
        rates.observe(DISK, 16 * MIB, 0.02 * (times if number >= 200 else 1.0))
    assert rates.rate(DISK).seconds(16 * MIB) == pytest.approx(0.02 * times, rel=0.25)


def test_a_pause_of_the_machine_is_not_taken_for_its_medium() -> None:
    rates = MediaRates(Clock())
    for number in range(100):
        rates.observe(DISK, MIB, 1.0 if number % 10 == 5 else 0.002)
    assert rates.rate(DISK).seconds(MIB) == pytest.approx(0.002, rel=0.25)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 100.0])
def test_odd_times_leave_a_sane_line(seconds: float) -> None:
    rates = MediaRates(Clock())
    for num_bytes in (4096, MIB, 64 * MIB):
        rates.observe(DISK, num_bytes, seconds)
        assert rates.rate(DISK).latency_s >= 0
        assert rates.rate(DISK).byte_s > 0


def test_what_is_under_way_is_waited_for() -> None:
    rates = MediaRates(Clock())
    assert rates.begin(DISK, MIB) == MIB
    assert rates.begin(DISK, 2 * MIB) == 3 * MIB
    assert rates.waiting_s(DISK) == pytest.approx(3 * MIB * PRIOR_RATES[DISK].byte_s)
    rates.end(DISK, MIB, MIB, None)
    rates.end(DISK, 2 * MIB, 3 * MIB, 0.01)
    assert rates.waiting_s(DISK) == 0


def test_a_medium_that_brings_nothing_hangs_until_it_brings_something() -> None:
    clock = Clock()
    rates = MediaRates(clock)
    clock.now_s = 100.0
    assert not rates.is_hanging(DISK), "nothing was asked of it"
    rates.begin(DISK, MIB)
    rates.begin(DISK, MIB)
    clock.now_s += 0.9
    assert not rates.is_hanging(DISK)
    clock.now_s += 0.2
    assert rates.is_hanging(DISK)
    assert rates.waiting_s(DISK) == math.inf
    assert not rates.is_hanging(TierKind.PEER)
    rates.end(DISK, MIB, MIB, 1.1)
    assert not rates.is_hanging(DISK)
