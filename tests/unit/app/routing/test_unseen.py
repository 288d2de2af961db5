"""What other gateways have sent that a view can't show."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.candidate import Candidate, Gateways, HeldPrefix
from app.routing.unseen import unseen_requests
from engine.messages import LoadView


def fleet(num_replicas: int, age_s: float = 1.0) -> list[Candidate]:
    return [
        Candidate(f"e{number:03}", LoadView(), 16, HeldPrefix(), 0, 0, 0, 0, age_s=age_s)
        for number in range(num_replicas)
    ]


def test_a_gateway_that_is_alone_has_seen_all() -> None:
    assert unseen_requests(Gateways(0, 1, 10.0), fleet(3)) == [0, 0, 0]


def test_only_its_own_home_is_free_of_surprises() -> None:
    unseen = unseen_requests(Gateways(1, 4, 2.0), fleet(8))
    assert unseen == pytest.approx([1, 1, 0, 0, 1, 1, 1, 1])


def test_homes_follow_ids_whatever_the_order() -> None:
    candidates = fleet(8)
    turned = unseen_requests(Gateways(1, 4, 2.0), candidates[3:] + candidates[:3])
    straight = unseen_requests(Gateways(1, 4, 2.0), candidates)
    assert turned == straight[3:] + straight[:3]


def test_others_prefer_what_is_wholly_theirs_to_replicas_on_the_border() -> None:
    unseen = unseen_requests(Gateways(1, 4, 1.0), fleet(3))
    # Three quarters of the first replica are others', half of the second one, all of the third: it
    # takes the rest of the three requests that others send in a second.
    shares = [0.75 / 2, 0.5 / 2, 1.0]
    assert unseen == pytest.approx([3 * share / sum(shares) for share in shares])


def test_a_fresh_view_hides_nothing() -> None:
    candidates = fleet(4)
    candidates[3] = msgspec.structs.replace(candidates[3], age_s=0.0)
    assert unseen_requests(Gateways(0, 2, 2.0), candidates)[3] == 0


def test_a_router_that_stands_alone_has_a_home_that_no_gateway_has() -> None:
    """Ranks from 0 up, and from -1 down, are different if all are counted."""
    homes = [unseen_requests(Gateways(rank, 4, 2.0), fleet(8)) for rank in (0, 1, -1, -2)]
    assert [min(unseen) for unseen in homes] == [0] * 4
    assert len(set(map(tuple, homes))) == 4


@given(st.integers(1, 40), st.integers(1, 40), st.integers(-100, 100), st.floats(0, 1e3))
def test_what_others_send_in_that_time_is_all_counted_once(
    num_replicas: int, number: int, rank: int, requests_per_s: float
) -> None:
    unseen = unseen_requests(Gateways(rank, number, requests_per_s), fleet(num_replicas, 0.5))
    assert all(value >= 0 for value in unseen)
    assert sum(unseen) == pytest.approx((number - 1) * requests_per_s * 0.5, abs=1e-6)
