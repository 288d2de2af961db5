from autoscaler.draft import Draft
from autoscaler.plan import Cause


def draft() -> Draft:
    return Draft(5, 8, [Cause.FORECAST])


def test_whoever_changed_it_last_comes_first() -> None:
    made = draft()
    made.raise_to(Cause.MINIMUM, serving=6)
    made.cap_at(Cause.MAXIMUM, 5)
    assert (made.num_serving, made.num_parked) == (5, 0)
    assert made.causes == [Cause.MAXIMUM, Cause.MINIMUM, Cause.FORECAST]


def test_who_changes_nothing_is_no_cause() -> None:
    made = draft()
    made.raise_to(Cause.MINIMUM, serving=5, total=8)
    made.cap_at(Cause.MAXIMUM, 8)
    assert made.causes == [Cause.FORECAST]


def test_a_floor_is_the_reason_for_as_long_as_less_is_wanted() -> None:
    made = draft()
    made.num_wanted = 3.5
    made.raise_to_floor(Cause.SCHEDULE, 5)
    assert made.causes[0] is Cause.SCHEDULE
    other = draft()
    other.num_wanted = 6.0
    other.raise_to_floor(Cause.SCHEDULE, 5)
    assert other.causes[0] is Cause.FORECAST


def test_more_servers_wake_before_anything_is_started() -> None:
    made = draft()
    made.raise_to(Cause.SCHEDULE, serving=7)
    assert (made.num_serving, made.num_parked) == (7, 1)
    made.raise_to(Cause.SCHEDULE, serving=9)
    assert (made.num_serving, made.num_parked) == (9, 0)


def test_sleepers_go_first() -> None:
    made = draft()
    made.cap_at(Cause.BUDGET, 6)
    assert (made.num_serving, made.num_parked) == (5, 1)


def test_who_may_not_sleep_serves() -> None:
    made = draft()
    made.cap_parked(1)
    assert (made.num_serving, made.num_parked) == (7, 1)
