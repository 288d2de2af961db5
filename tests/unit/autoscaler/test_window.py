import pytest

from autoscaler.window import Standing, Window
from tests.unit.autoscaler.fleets import make_demand

STANDING = Standing(kv_use=0.5, num_serving=3, num_parked=1, num_starting=0)


def test_sums_what_came_in_the_last_seconds() -> None:
    window = Window(3600)
    for second in range(100):
        window.record(second, make_demand(5.0 if second < 90 else 7.0), STANDING)
    totals = window.totals(20)
    assert totals.num_known_s == 20
    assert totals.num_arrived == pytest.approx(10 * 5 + 10 * 7)
    assert totals.num_uncached_tokens == pytest.approx(totals.num_prompt_tokens / 2)


def test_what_is_unknown_counts_in_no_sum() -> None:
    window = Window(3600)
    for second in range(30):
        window.record(second, None if 10 <= second < 20 else make_demand(5.0), STANDING)
    assert window.totals(30).num_known_s == 20
    assert window.totals(30).num_arrived == pytest.approx(100)
    assert window.known_s == 20


def test_seconds_without_an_observation_are_unknown() -> None:
    window = Window(3600)
    window.record(0, make_demand(5.0), STANDING)
    window.record(50, make_demand(5.0), STANDING)
    assert window.totals(60).num_known_s == 2


def test_an_observation_speaks_for_its_whole_period() -> None:
    window = Window(3600)
    window.record(0, make_demand(5.0), STANDING)
    window.record(10, make_demand(8.0, period_s=10.0), STANDING)
    assert window.totals(10).num_known_s == 10
    assert window.totals(10).num_arrived == pytest.approx(80)


def test_several_observations_of_one_second_become_their_mean() -> None:
    window = Window(3600)
    for tick, rate in enumerate((2.0, 4.0, 6.0, 8.0)):
        window.record(7 + tick / 4, make_demand(rate, period_s=0.25), STANDING)
    assert window.totals(1).num_arrived == pytest.approx(5.0)


def test_memory_stays_the_same_for_ever() -> None:
    window = Window(600)
    before = window.num_bytes
    for second in range(2000):
        window.record(second, make_demand(1.0), STANDING)
    assert window.num_bytes == before
    assert window.totals(5000).num_arrived == pytest.approx(600)


def test_a_leap_over_the_whole_history_leaves_one_known_second() -> None:
    window = Window(600)
    for second in range(700):
        window.record(second, make_demand(1.0), STANDING)
    window.record(10**9, make_demand(1.0), STANDING)
    assert window.totals(600).num_known_s == 1


@pytest.mark.parametrize("history_s", [100, 1000])
def test_a_new_length_keeps_the_newest(history_s: int) -> None:
    window = Window(300)
    for second in range(777):
        window.record(second, make_demand(float(second)), STANDING)
    window.resize(history_s)
    assert window.totals(10).num_arrived == pytest.approx(sum(range(767, 777)))
    window.record(777, make_demand(777.0), STANDING)
    assert window.totals(10).num_arrived == pytest.approx(sum(range(768, 778)))
    assert window.totals(2000).num_known_s == min(history_s, 301)


def test_tells_how_things_stand() -> None:
    window = Window(60)
    assert window.latest("kv_use") is None
    window.record(1, make_demand(1.0, num_waiting=9.0), STANDING)
    assert window.latest("kv_use") == 0.5
    assert window.latest("num_waiting") == 9
    window.record(2, None, Standing(None, 0, 0, 2))
    assert window.latest("kv_use") is None
    assert window.latest("num_starting") == 2
