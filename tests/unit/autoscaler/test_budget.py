import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.budget import Request, hold_growth, share_out
from autoscaler.config import ModelScalingConfig


def request(
    serving: int,
    parked: int = 0,
    minimum: int = 0,
    *,
    devices: int = 1,
    late_cost: float = 50.0,
    current: int = 0,
) -> Request:
    config = ModelScalingConfig(name="m", devices_per_replica=devices, late_cost=late_cost)
    return Request(config, minimum, serving, parked, current)


def sizes(requests: list[Request], num_devices: int) -> list[tuple[int, int]]:
    return [(g.num_serving, g.num_parked) for g in share_out(requests, num_devices)]


def test_with_enough_all_get_what_they_ask() -> None:
    requests = [request(3, 2), request(4, 1, devices=8)]
    assert sizes(requests, 45) == [(3, 2), (4, 1)]


def test_sleepers_make_room_before_anything_that_serves() -> None:
    assert sizes([request(3, 2), request(4, 3)], 7) == [(3, 0), (4, 0)]


def test_minimums_come_first() -> None:
    requests = [request(20, minimum=0, late_cost=1000.0), request(5, minimum=4)]
    assert sizes(requests, 5) == [(1, 0), (4, 0)]


def test_equal_models_miss_the_same_share() -> None:
    assert sizes([request(20), request(10)], 15) == [(10, 0), (5, 0)]


def test_whoever_is_late_at_a_higher_price_misses_less() -> None:
    cheap, dear = sizes([request(10), request(10, late_cost=200.0)], 10)
    assert dear[0] > cheap[0] > 0


def test_what_does_not_fit_leaves_room_for_what_does() -> None:
    assert sizes([request(2, devices=8), request(9)], 7) == [(0, 0), (7, 0)]


def test_models_that_need_no_accelerator_get_all() -> None:
    assert sizes([request(9, 3, devices=0), request(5)], 2) == [(9, 3), (2, 0)]


def test_a_budget_of_zero_takes_nothing_away_and_lets_nothing_grow() -> None:
    requests = [request(9, 3, current=4), request(2, 1, current=5)]
    grants = hold_growth(requests)
    assert [(g.num_serving, g.num_parked) for g in grants] == [(4, 0), (2, 1)]


REQUESTS = st.lists(
    st.builds(
        request,
        st.integers(0, 30),
        st.integers(0, 10),
        st.integers(0, 40),
        devices=st.integers(0, 8),
        late_cost=st.floats(0.1, 1e4),
    ),
    max_size=5,
)


@given(REQUESTS, st.integers(0, 200))
def test_is_never_exceeded_and_nobody_gets_more_than_asked(
    requests: list[Request], num_devices: int
) -> None:
    grants = share_out(requests, num_devices)
    used = 0
    for asked, grant in zip(requests, grants, strict=True):
        assert 0 <= grant.num_serving <= asked.num_serving
        assert 0 <= grant.num_parked <= asked.num_parked
        used += (grant.num_serving + grant.num_parked) * asked.config.devices_per_replica
    assert used <= num_devices


@pytest.mark.parametrize("num_devices", range(0, 40, 3))
def test_a_larger_budget_takes_no_server_away(num_devices: int) -> None:
    requests = [request(12, 4, 2, devices=2), request(7, 3, late_cost=80.0)]
    less, more = share_out(requests, num_devices), share_out(requests, num_devices + 3)
    total = sum(each.num_serving for each in less)
    assert total <= sum(each.num_serving for each in more)
