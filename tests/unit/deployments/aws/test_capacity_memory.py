"""What was refused is left alone for a while."""

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
