from dataclasses import replace

from autoscaler.model_view import Sight
from autoscaler.urgency import Urgency
from tests.unit.autoscaler.fleets import make_replica

SIGHT = Sight(
    now_s=0.0,
    passed_s=1.0,
    load=3.0,
    backlog_replica_s=0.0,
    num_requests=30.0,
    serve=None,
    replicas=tuple(make_replica(f"e{at}") for at in range(9)),
    num_ready=4,
    num_asleep=5,
    is_idle=False,
    starting=None,
    blindness=None,
    faults=(),
)


def after(urgency: Urgency, *loads: float | None, start_s: float = 0.0) -> int:
    for second, load in enumerate(loads):
        now_s = start_s + second
        least = urgency.least_serving(replace(SIGHT, now_s=now_s, load=load), 4, 0.7)
    return least


def test_what_those_who_serve_take_is_no_hurry() -> None:
    assert after(Urgency(), 3.0, 3.9, 3.5) == 0


def test_more_than_they_take_wakes_others_within_seconds() -> None:
    urgency = Urgency()
    assert after(urgency, 3.0, 3.0) == 0
    assert 5 <= after(urgency, *[8.0] * 4, start_s=2.0) <= 8


def test_one_second_of_noise_wakes_nobody() -> None:
    assert after(Urgency(), 3.0, 5.0, 2.0) == 0


def test_a_queue_that_makes_everything_late_wakes_all() -> None:
    sight = replace(SIGHT, backlog_replica_s=4.0)
    assert Urgency().least_serving(sight, 4, 0.7) == 9


def test_afterwards_nobody_goes_to_sleep_for_a_minute() -> None:
    urgency = Urgency()
    urgency.least_serving(replace(SIGHT, backlog_replica_s=4.0), 4, 0.7)
    later = replace(SIGHT, now_s=59.0, passed_s=59.0)
    assert urgency.least_serving(later, 9, 0.7) == 9
    assert urgency.least_serving(replace(later, now_s=61.0), 9, 0.7) == 0


def test_what_is_unknown_changes_nothing() -> None:
    assert after(Urgency(), 3.0, None, None) == 0
