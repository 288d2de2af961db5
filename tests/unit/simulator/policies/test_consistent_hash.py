"""Consistent hashing with bounded loads."""

from collections import Counter

from app.routing.candidate import RouteRequest
from simulator.policies.consistent_hash import consistent_hash
from tests.unit.simulator.policies.seen_replicas import seen

NAMES = "abcdefgh"


def chosen(affinity: int | None, counts: dict[str, int], rotation: int = 0) -> str:
    fleet = [seen(name, running=counts.get(name, 0)) for name in NAMES if name in counts]
    request = RouteRequest(10, affinity=affinity, rotation=rotation)
    return consistent_hash(request, fleet).candidate.engine_id


def idle(names: str = NAMES) -> dict[str, int]:
    return dict.fromkeys(names, 0)


def test_a_session_stays_and_sessions_spread() -> None:
    places = Counter(chosen(affinity, idle()) for affinity in range(4000))
    assert all(chosen(7, idle(), rotation=turn) == chosen(7, idle()) for turn in range(5))
    assert set(places) == set(NAMES)
    assert max(places.values()) < 1.6 * 4000 / 8


def test_a_lost_replica_moves_only_its_own_sessions() -> None:
    before = {affinity: chosen(affinity, idle()) for affinity in range(500)}
    after = {affinity: chosen(affinity, idle("abcdefg")) for affinity in range(500)}
    moved = [affinity for affinity in before if before[affinity] != after[affinity]]
    assert moved
    assert all(before[affinity] == "h" for affinity in moved)


def test_a_full_replica_passes_on_what_is_its() -> None:
    home = chosen(7, idle())
    # 8 requests and this one: a share of 9/8, times 1.25 rounded up is 2.
    counts = {**idle(), home: 2, "a" if home != "a" else "b": 6}
    assert chosen(7, counts) != home
    counts[home] = 1
    assert chosen(7, counts) == home


def test_requests_without_a_session_go_anywhere() -> None:
    places = Counter(chosen(None, idle(), rotation=turn) for turn in range(400))
    assert set(places) == set(NAMES)
