from autoscaler.step_limit import StepLimit


def test_a_fleet_may_grow_fourfold_in_half_a_minute_and_not_again_at_once() -> None:
    limit = StepLimit()
    assert limit.most(0.0, 10) == 40
    assert limit.most(10.0, 40) == 40
    assert limit.most(31.0, 40) == 160


def test_a_small_fleet_may_grow_by_more() -> None:
    assert StepLimit().most(0.0, 0) == 8
    assert StepLimit().most(0.0, 1) == 9


def test_after_shrinking_it_grows_from_there() -> None:
    limit = StepLimit()
    limit.most(0.0, 100)
    assert limit.most(1.0, 10) == 40


def test_half_may_go_at_once() -> None:
    assert [StepLimit.least(num) for num in (0, 1, 2, 9)] == [0, 0, 1, 4]
