"""Stages of a start: without gaps, from the moment that another process gave."""

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage
from engine.start_stages import ReplicaStart, StageClock


def test_stages_follow_each_other_from_when_the_start_was_asked_for() -> None:
    times_s = iter([5.5, 7.0, 7.25])
    clock = StageClock(5.0, lambda: next(times_s))
    clock.end("process")
    clock.end("weights", 300)
    clock.end("warm_up")
    assert clock.stages == (
        Stage("process", 0.5),
        Stage("weights", 1.5, 300),
        Stage("warm_up", 0.25),
    )


def test_a_clock_of_no_one_else_begins_when_it_is_made() -> None:
    times_s = iter([2.0, 3.0])
    clock = StageClock(clock=lambda: next(times_s))
    clock.end("model_card")
    assert clock.stages == (Stage("model_card", 1.0),)


def test_a_start_is_told_in_one_line() -> None:
    start = ReplicaStart(
        Rung.ON_DISK, 2.504, (Stage("process", 0.4), Stage("weights", 2.0, 4_000_000_000))
    )
    assert str(start) == "2.50 s from ON_DISK: process 0.40 s, weights 2.00 s (4,000 MB)"
