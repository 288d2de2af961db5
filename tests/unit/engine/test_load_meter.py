"""Moving averages of the load view."""

import pytest

from engine.load_meter import LoadMeter


def test_unknown_is_zero_and_the_first_step_is_taken_as_it_is() -> None:
    meter = LoadMeter()
    assert (meter.step_time_s, meter.prefill_tokens_per_s) == (0.0, 0.0)
    meter.record(0.5, num_prefill_tokens=100)
    assert (meter.step_time_s, meter.prefill_tokens_per_s) == (0.5, 200.0)


def test_decode_steps_leave_the_prefill_speed_alone() -> None:
    meter = LoadMeter()
    meter.record(0.5, num_prefill_tokens=100)
    meter.record(0.1, num_prefill_tokens=0)
    assert meter.prefill_tokens_per_s == 200.0
    assert meter.step_time_s == pytest.approx(0.46)


def test_averages_follow_a_change() -> None:
    meter = LoadMeter()
    for step_time_s in [0.1] * 5 + [0.2] * 60:
        meter.record(step_time_s, num_prefill_tokens=512)
    assert meter.step_time_s == pytest.approx(0.2, rel=0.01)
    assert meter.prefill_tokens_per_s == pytest.approx(2560, rel=0.01)


def test_the_last_tokens_of_cached_prompts_hardly_move_the_prefill_speed() -> None:
    meter = LoadMeter()
    meter.record(0.1, num_prefill_tokens=512)
    for _ in range(20):
        meter.record(0.1, num_prefill_tokens=1)
    assert meter.prefill_tokens_per_s > 5000


def test_steps_alike_count_as_if_one_by_one() -> None:
    at_once, one_by_one = LoadMeter(), LoadMeter()
    for meter in (at_once, one_by_one):
        meter.record(0.5, 0)
    at_once.record_alike(0.1, 7)
    for _ in range(7):
        one_by_one.record(0.1, 0)
    assert at_once.step_time_s == pytest.approx(one_by_one.step_time_s)
