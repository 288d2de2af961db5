"""Pins: quotas, renewal and expiry."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.keys import BlockKey
from cache_tiers.pins import PinnedBlock, Pins


def blocks(*numbers: int) -> list[PinnedBlock]:
    return [PinnedBlock(0, BlockKey(number.to_bytes(16))) for number in numbers]


def test_a_pin_is_renewed_and_never_shortened() -> None:
    pins = Pins(100, 100)
    assert pins.add(b"a", blocks(1), 10, 50.0) == blocks(1)
    assert pins.add(b"a", blocks(1), 10, 80.0) == []
    assert pins.add(b"a", blocks(1), 10, 20.0) == []
    assert pins.expire(60.0) == []
    assert pins.expire(80.0) == blocks(1)
    assert pins.used_bytes == 0


def test_a_pin_ends_when_its_last_renewal_says_and_not_before() -> None:
    pins = Pins(100, 100)
    for renewal in range(10_000):
        pins.add(b"a", blocks(1), 10, 50.0 + renewal)
    pins.check_integrity()
    assert pins.expire(10_048.9) == []
    assert pins.expire(10_049.0) == blocks(1)


def test_renewals_and_removals_take_no_memory() -> None:
    pins = Pins(100, 100)
    for number in range(20_000):
        pins.add(b"a", blocks(1), 10, 1e6 + number)
        if number % 2:
            pins.remove(blocks(1)[0])
    assert len(pins._expiries) < 3000
    pins.check_integrity()


def test_quotas_are_each_tenants_and_all_tenants() -> None:
    pins = Pins(tenant_quota_bytes=20, max_bytes=30)
    assert pins.add(b"a", blocks(1, 2, 3), 10, 50.0) == blocks(1, 2)
    assert pins.add(b"b", blocks(4, 5), 10, 50.0) == blocks(4)
    assert pins.num_refused == 2
    pins.remove(blocks(1)[0])
    assert pins.add(b"b", blocks(5), 10, 50.0) == blocks(5)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 50)), max_size=60))
def test_books_stay_right(steps: list[tuple[int, int, int]]) -> None:
    pins = Pins(40, 70)
    for now_s, (tenant, number, ttl_s) in enumerate(steps):
        pins.add(bytes([tenant]), blocks(number, number + 1), 10, float(now_s + ttl_s))
        if ttl_s == 7:
            pins.remove(blocks(number)[0])
        pins.expire(float(now_s))
        pins.check_integrity()
    pins.expire(1e9)
    assert len(pins) == 0
    assert pins.used_bytes == 0
