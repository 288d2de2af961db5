"""A limit that does not swing: soon down, up when there was room for long, few turns."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.slow_limit import TURN_S, SlowLimit


def follow(limit: SlowLimit, wanted: int, *, from_s: float, for_s: float) -> list[int]:
    """Ten times a second; the values on the way."""
    values = []
    for tick in range(round(10 * for_s) + 1):
        limit.follow(wanted, from_s + tick / 10)
        values.append(limit.value)
    return values


def test_it_falls_within_a_second_and_not_for_one_slow_step() -> None:
    limit = SlowLimit(100)
    limit.follow(20, 0.0)
    limit.follow(100, 0.1)
    assert follow(limit, 50, from_s=1.0, for_s=0.4)[-1] == 100
    assert follow(limit, 50, from_s=1.5, for_s=1.0)[-1] == 50


def test_it_rises_to_the_least_room_of_ten_seconds() -> None:
    limit = SlowLimit(100)
    follow(limit, 40, from_s=0.0, for_s=1.0)
    follow(limit, 90, from_s=2.0, for_s=5.0)
    follow(limit, 70, from_s=7.0, for_s=2.0)
    assert follow(limit, 95, from_s=9.0, for_s=2.8)[-1] == 40
    assert follow(limit, 95, from_s=11.9, for_s=0.2)[-1] == 70


def test_small_changes_are_not_followed() -> None:
    limit = SlowLimit(100)
    follow(limit, 40, from_s=0.0, for_s=1.0)
    for wanted in (38, 44):
        assert set(follow(limit, wanted, from_s=10.0 + wanted, for_s=30.0)) == {40}


def test_the_most_is_reached_again_however_near() -> None:
    limit = SlowLimit(100)
    follow(limit, 93, from_s=0.0, for_s=1.0)
    assert limit.value == 93
    follow(limit, 1000, from_s=2.0, for_s=11.0)
    assert limit.value == 100


def test_never_below_one() -> None:
    limit = SlowLimit(8)
    follow(limit, -5, from_s=0.0, for_s=1.0)
    assert limit.value == 1


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.01, 15.0)), max_size=200))
def test_it_turns_at_most_once_in_ten_seconds(wishes: list[tuple[int, float]]) -> None:
    limit, now_s = SlowLimit(64), 0.0
    turns_s: list[float] = []
    is_rising, has_moved = False, False
    for wanted, pause_s in wishes:
        now_s += pause_s
        before = limit.value
        limit.follow(wanted, now_s)
        assert 1 <= limit.value <= 64
        if limit.value != before:
            if has_moved and is_rising != (limit.value > before):
                turns_s.append(now_s)
            is_rising, has_moved = limit.value > before, True
    assert all(b - a >= TURN_S for a, b in pairwise(turns_s))
