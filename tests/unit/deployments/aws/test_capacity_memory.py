"""What was refused is left alone for a while."""

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from deployments.aws.capacity_memory import (
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    CapacityMemory,
    Place,
)
from deployments.aws.launch_config import Market

PLACE = Place(Market.SPOT, "p5.48xlarge", "us-east-1a")
CODE = "InsufficientInstanceCapacity"


def test_the_back_off_doubles_up_to_its_cap_and_no_further() -> None:
    memory, now_s, waits = CapacityMemory(), 0.0, []
    for _ in range(2000):
        refusal = memory.refused(PLACE, CODE, now_s)
        waits.append(refusal.until_s - now_s)
        now_s = refusal.until_s
    assert waits[:6] == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0]
    assert waits[-1] == LONGEST_BACK_OFF_S


def test_a_refusal_holds_for_its_place_alone_until_its_end() -> None:
    memory = CapacityMemory()
    memory.refused(PLACE, CODE, 5.0)
    other = Place(Market.ON_DEMAND, PLACE.instance_type, PLACE.zone)
    assert memory.in_force(other, 5.0) is None
    refusal = memory.in_force(PLACE, 5.0 + FIRST_BACK_OFF_S - 0.001)
    assert refusal is not None
    assert refusal.code == CODE
    assert memory.in_force(PLACE, 5.0 + FIRST_BACK_OFF_S) is None


def test_refusals_that_come_at_once_count_once_and_a_grant_forgets_them() -> None:
    memory = CapacityMemory()
    assert memory.refused(PLACE, CODE, 0.0) == memory.refused(PLACE, CODE, 1.0)
    memory.granted(PLACE)
    assert memory.in_force(PLACE, 1.0) is None
    assert memory.refused(PLACE, CODE, 2.0).count == 1


class Event(NamedTuple):
    after_s: float
    place: Place
    refused: bool
    """Granted if not."""


PLACES = [Place(market, "p5.48xlarge", "us-east-1a") for market in Market]
EVENTS = st.lists(
    st.builds(Event, st.floats(0.0, 1500.0), st.sampled_from(PLACES), st.booleans()), max_size=60
)


@given(EVENTS)
def test_nothing_is_left_out_that_was_granted_since_nor_longer_than_the_cap(
    events: list[Event],
) -> None:
    memory, now_s = CapacityMemory(), 0.0
    last: dict[Place, tuple[float, bool]] = {}
    for event in events:
        now_s += event.after_s
        if event.refused:
            memory.refused(event.place, CODE, now_s)
        else:
            memory.granted(event.place)
        last[event.place] = (now_s, event.refused)
        for place in PLACES:
            at_s, refused = last.get(place, (now_s, False))
            in_force = memory.in_force(place, now_s)
            if not refused or now_s >= at_s + LONGEST_BACK_OFF_S:
                assert in_force is None
            if place == event.place and refused:
                assert in_force is not None
                assert now_s < in_force.until_s <= now_s + LONGEST_BACK_OFF_S


@given(st.lists(st.floats(0.0, LONGEST_BACK_OFF_S - 1.0), min_size=2, max_size=20))
def test_the_back_off_never_shrinks_while_refusals_go_on(late_s: list[float]) -> None:
    """Each refusal comes that long after the one before it ended."""
    memory, now_s, waits = CapacityMemory(), 0.0, []
    for late in late_s:
        now_s += late
        refusal = memory.refused(PLACE, CODE, now_s)
        # Sums of floats: times are compared to the microsecond.
        waits.append(round(refusal.until_s - now_s, 6))
        now_s = refusal.until_s
    assert waits[0] == FIRST_BACK_OFF_S
    assert all(after == min(2.0 * before, LONGEST_BACK_OFF_S) for before, after in pairwise(waits))


@given(st.floats(0.0, 1e6))
def test_refusals_of_long_ago_are_forgotten(longer_s: float) -> None:
    memory, now_s = CapacityMemory(), 0.0
    for _ in range(4):
        now_s = memory.refused(PLACE, CODE, now_s).until_s
    assert memory.refused(PLACE, CODE, now_s + LONGEST_BACK_OFF_S + longer_s).count == 1
