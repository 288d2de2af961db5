from engine.rate_limit import RateLimit


def test_allows_a_burst_and_then_as_many_as_come_back() -> None:
    limit = RateLimit(burst=3, per_s=2)
    assert [limit.allows(10.0) for _ in range(4)] == [True, True, True, False]
    assert not limit.allows(10.4)
    assert limit.allows(10.6)
    assert not limit.allows(10.6)


def test_a_long_pause_gives_no_more_than_a_burst() -> None:
    limit = RateLimit(burst=2, per_s=100)
    assert limit.allows(0.0)
    assert [limit.allows(1e6) for _ in range(3)] == [True, True, False]
