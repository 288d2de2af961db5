import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_tiers.backoff import Backoff
from cache_tiers.tier import TierError


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def pause_s(backoff: Backoff, clock: Clock) -> float:
    """Let time pass until it may be tried again, in steps of a quarter of a second."""
    begin_s = clock.now_s
    while True:
        try:
            backoff.check()
        except TierError:
            clock.now_s += 0.25
        else:
            return clock.now_s - begin_s


def test_pauses_double_up_to_the_longest() -> None:
    clock = Clock()
    backoff = Backoff("a peer", min_s=1.0, max_s=5.0, clock=clock)
    pauses_s = []
    for _ in range(5):
        backoff.failed("gone")
        pauses_s.append(pause_s(backoff, clock))
    assert pauses_s == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_it_may_be_tried_at_first() -> None:
    Backoff("a peer").check()


def test_failures_side_by_side_make_one_pause_and_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    backoff = Backoff("peer 10.0.0.1", min_s=1.0, clock=clock)
    with caplog.at_level(logging.WARNING):
        errors = [str(backoff.failed("it is gone")) for _ in range(3)]
    assert errors == ["peer 10.0.0.1: it is gone"] * 3
    assert caplog.messages == ["peer 10.0.0.1: it is gone; it is tried again from time to time"]
    assert backoff.num_failures == 3
    assert pause_s(backoff, clock) == 1.0
    assert backoff.num_spared == 4


def test_a_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    backoff = Backoff("a peer", clock=clock)
    with caplog.at_level(logging.WARNING):
        backoff.succeeded()
        for why in ("gone", "slow", "gone"):
            backoff.failed(why)
            assert backoff.reason == f"a peer: {why}"
            pause_s(backoff, clock)
        backoff.succeeded()
        backoff.succeeded()
    assert backoff.reason == ""
    assert caplog.messages == [
        "a peer: gone; it is tried again from time to time",
        "a peer: works again",
    ]


def test_what_tells_of_itself_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    backoff = Backoff("a disk", clock=clock, is_silent=True)
    with caplog.at_level(logging.INFO):
        backoff.failed("it is full")
        pause_s(backoff, clock)
        backoff.succeeded()
    assert not caplog.messages


def test_what_strangers_say_stays_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    error = Backoff("a peer").failed("no\nERROR \x1b[31mall is lost")
    assert str(error) == "a peer: no ERROR  [31mall is lost"
    assert caplog.messages == [f"{error}; it is tried again from time to time"]


def test_success_makes_the_next_pause_short_again() -> None:
    clock = Clock()
    backoff = Backoff("a peer", min_s=1.0, clock=clock)
    backoff.failed("gone")
    pause_s(backoff, clock)
    backoff.failed("gone")
    pause_s(backoff, clock)
    backoff.succeeded()
    backoff.failed("gone")
    assert pause_s(backoff, clock) == 1.0


def test_success_of_what_began_before_a_failure_ends_no_pause() -> None:
    clock = Clock()
    backoff = Backoff("a peer", min_s=1.0, clock=clock)
    backoff.failed("gone")
    backoff.succeeded()
    assert pause_s(backoff, clock) == 1.0
    backoff.failed("gone")
    assert pause_s(backoff, clock) == 2.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=20))
def test_no_pause_is_longer_than_the_longest(steps: list[tuple[bool, int]]) -> None:
    clock = Clock()
    backoff = Backoff("a peer", min_s=0.5, max_s=8.0, clock=clock)
    for is_failure, wait in steps:
        if is_failure:
            backoff.failed("gone")
        else:
            backoff.succeeded()
        clock.now_s += wait / 4
    assert pause_s(backoff, clock) <= 8.0
