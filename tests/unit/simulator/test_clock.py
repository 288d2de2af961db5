"""Virtual time jumps from one action to the next, in order."""

from simulator.clock import VirtualClock


def test_actions_happen_in_order_of_time_and_of_asking() -> None:
    clock, seen = VirtualClock(), list[tuple[str, float]]()
    for name, when_s in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        clock.at(when_s, lambda name=name: seen.append((name, clock.now_s)))  # type: ignore[misc]
    clock.run()
    assert seen == [("first", 1.0), ("second", 1.0), ("late", 2.0)]


def test_what_is_asked_for_too_late_happens_now() -> None:
    clock, seen = VirtualClock(), list[float]()
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now_s)))
    clock.run()
    assert seen == [5.0]


def test_it_stops_where_it_is_told_to() -> None:
    clock, seen = VirtualClock(), list[float]()
    for when_s in (1.0, 2.0, 3.0):
        clock.at(when_s, lambda: seen.append(clock.now_s))
    clock.run(until_s=2.5)
    assert seen == [1.0, 2.0]
    assert clock.now_s == 2.5
    clock.run()
    assert seen == [1.0, 2.0, 3.0]
