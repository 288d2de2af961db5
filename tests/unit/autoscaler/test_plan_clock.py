import math

from autoscaler.observation import ModelObservation, StartingReplica
from autoscaler.plan_clock import PlanClock


def test_time_passes_as_the_observer_says() -> None:
    clock = PlanClock()
    assert clock.advance(100.0, 5e8) is None
    assert clock.advance(101.5, 5e8 + 1.5) is None
    assert (clock.now_s, clock.local_s) == (101.5, 5e8 + 1.5)


def test_a_step_back_stops_the_time_and_then_goes_on() -> None:
    clock = PlanClock()
    clock.advance(100.0, 0.0)
    fault = clock.advance(40.0, 0.0)
    assert fault is not None
    assert "back by 60 s" in fault
    assert clock.now_s == 100.0
    assert clock.advance(41.0, 0.0) is None
    assert clock.now_s == 101.0


def test_after_a_step_back_starts_were_asked_when_they_were() -> None:
    clock = PlanClock()
    clock.advance(100.0, 0.0)
    clock.advance(40.0, 0.0)
    observation = ModelObservation("m", None, starting=(StartingReplica(asked_s=30.0),))
    starting = clock.shifted(observation).starting
    assert starting == (StartingReplica(asked_s=90.0),)


def test_a_leap_is_a_gap() -> None:
    clock = PlanClock()
    clock.advance(0.0, 0.0)
    fault = clock.advance(1000.0, 1000.0)
    assert fault is not None
    assert "1000 s" in fault
    assert clock.now_s == 1000.0


def test_a_leap_of_days_counts_as_an_hour() -> None:
    clock = PlanClock()
    clock.advance(0.0, 0.0)
    clock.advance(1e6, 1e6)
    assert clock.now_s == 3600.0
    clock.advance(1e6 + 1.0, 1e6)
    assert clock.now_s == 3601.0


def test_nonsense_is_no_time() -> None:
    clock = PlanClock()
    clock.advance(10.0, 20.0)
    for nonsense in (math.nan, math.inf, -math.inf, 1e300):
        assert clock.advance(nonsense, 21.0) is not None
        assert clock.now_s == 10.0
    fault = clock.advance(12.0, math.nan)
    assert fault is not None
    assert clock.local_s == 23.0
