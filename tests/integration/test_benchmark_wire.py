"""The wire benchmark in short: that it runs, and that the channel is not slow beyond doubt."""

import os
from collections.abc import Iterator

import pytest

from benchmarks.statistics import percentile
from benchmarks.wire import Duration, measure, measure_decoding, pin_to_one_core

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

SHORT = Duration(warm_up_s=0.5, measured_s=1.5)


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    pin_to_one_core()
    yield
    os.sched_setaffinity(0, before)


def test_a_saturated_channel_delivers_a_part_of_what_can_be_decoded() -> None:
    delivery = measure(64, 0.0, SHORT, seed=0)
    assert 50_000 < delivery.deltas_per_s < measure_decoding(64, seed=0)
    assert delivery.core.own < 1.05


def test_submits_arrive_soon_at_a_steady_load() -> None:
    delivery = measure(64, 0.004, SHORT, seed=0)
    assert delivery.deltas_per_s == pytest.approx(16_000, rel=0.15)
    assert len(delivery.submit_times_ms) > 5
    assert 0 < percentile(delivery.submit_times_ms, 50.0) < 10
