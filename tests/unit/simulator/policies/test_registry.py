"""All policies behind one interface."""

import pytest

from app.routing.candidate import HeldPrefix, RouteRequest
from app.routing.policy import choose
from simulator.policies.registry import POLICIES, create_policy
from tests.unit.simulator.policies.seen_replicas import seen


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_chooses_one_of_those_it_sees_and_the_same_again(name: str) -> None:
    policy = create_policy(name).choose
    fleet = [
        seen("a", running=3, held=HeldPrefix(300), told_tokens=300, told_size=4),
        seen("b", waiting=1, told_size=2),
        seen("c", prefill_tokens=900, held=HeldPrefix(900), told_tokens=900, told_size=9),
    ]
    for rotation in range(20):
        request = RouteRequest(1000, affinity=5, rotation=rotation)
        choice = policy(request, fleet)
        assert choice.candidate in [replica.candidate for replica in fleet]
        assert policy(request, fleet) == choice
    assert policy(RouteRequest(1), fleet[:1]).candidate.engine_id == "a"


def test_ours_is_the_production_policy() -> None:
    fleet = [seen("a", prefill_tokens=5000), seen("b", held=HeldPrefix(500))]
    request = RouteRequest(1000)
    candidates = [replica.candidate for replica in fleet]
    assert create_policy("headwater").choose(request, fleet) == choose(request, candidates)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no routing policy 'best': choose one of round_robin, "):
        create_policy("best")
