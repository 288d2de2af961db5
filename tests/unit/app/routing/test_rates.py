"""What is learned of how fast replicas compute and load."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.candidate import NO_RATES, ReplicaRates, SourceKind
from app.routing.rates import RateBook
from app.routing.transfer_rate import TransferRate
from engine.messages import LoadView


def fitted(base_s: float, token_s: float, attended_s: float = 0.0) -> LoadView:
    return LoadView(prefill_base_s=base_s, prefill_token_s=token_s, prefill_attended_s=attended_s)


def test_an_engines_own_fit_is_believed() -> None:
    book = RateBook()
    book.see_load("a", fitted(0.02, 1e-4, 1e-9))
    assert book.rates("a") == ReplicaRates(0.02, 1e-4, 1e-9)
    book.see_load("a", LoadView())
    assert book.rates("a") == ReplicaRates(0.02, 1e-4, 1e-9), "a view without a fit says nothing"


def test_a_new_replica_is_taken_for_a_usual_one() -> None:
    book = RateBook()
    assert book.rates("new") == NO_RATES
    book.see_load("a", fitted(0.02, 1e-4))
    book.see_load("b", fitted(0.04, 3e-4))
    book.record_transfer("b", SourceKind.PEER, 1000, 0.1)
    usual = book.rates("new", has_tiers=True)
    assert (usual.prefill_base_s, usual.prefill_token_s) == pytest.approx((0.03, 2e-4))
    assert usual.peer_tokens_per_s == pytest.approx(10_000)
    book.see_load("new", fitted(0.01, 1e-5))
    own = book.rates("new", has_tiers=True)
    assert own.prefill_token_s == 1e-5
    assert own.peer_tokens_per_s == pytest.approx(10_000)


def test_a_medium_that_nobody_has_measured_is_tried() -> None:
    book = RateBook()
    book.see_load("a", fitted(0.02, 1e-4))
    rates = book.rates("a", has_tiers=True)
    speeds = (rates.host_tokens_per_s, rates.disk_tokens_per_s, rates.peer_tokens_per_s)
    assert speeds == pytest.approx((80_000, 40_000, 40_000)), "a few times as fast as computing"
    book.record_transfer("a", SourceKind.DISK, 1000, 0.1)
    assert book.rates("a", has_tiers=True).disk_tokens_per_s == pytest.approx(10_000)


def test_a_replica_without_tiers_loads_from_nowhere() -> None:
    book = RateBook()
    book.record_transfer("a", SourceKind.HOST, 1000, 0.1)
    assert book.rates("new") == NO_RATES


def test_each_medium_is_learned_by_itself() -> None:
    book = RateBook()
    for kind, speed in ((SourceKind.HOST, 1e6), (SourceKind.DISK, 1e5), (SourceKind.PEER, 1e4)):
        book.record_transfer("a", kind, 1000, 1000 / speed)
    rates = book.rates("a", has_tiers=True)
    speeds = (rates.host_tokens_per_s, rates.disk_tokens_per_s, rates.peer_tokens_per_s)
    assert speeds == pytest.approx((1e6, 1e5, 1e4))


def test_who_left_is_forgotten() -> None:
    book = RateBook()
    book.see_load("a", fitted(0.02, 1e-4))
    book.record_transfer("a", SourceKind.HOST, 1000, 0.1)
    book.forget("a")
    assert (len(book), book.rates("a"), book.rates("new")) == (0, NO_RATES, NO_RATES)


def test_a_rate_follows_a_change_and_long_transfers_do_not_drown_short_ones() -> None:
    rate = TransferRate()
    assert rate.tokens_per_s == 0
    for num_tokens in (100, 10**6) * 20:
        rate.record(num_tokens, num_tokens / 1000)
    assert rate.tokens_per_s == pytest.approx(1000)
    for _ in range(40):
        rate.record(100, 100 / 50)
    assert rate.tokens_per_s == pytest.approx(50, rel=0.1)


@given(st.lists(st.tuples(st.integers(-5, 10**7), st.floats(allow_nan=True))))
def test_a_rate_is_a_rate_whatever_comes(transfers: list[tuple[int, float]]) -> None:
    rate = TransferRate()
    for num_tokens, time_s in transfers:
        rate.record(num_tokens, time_s)
    assert 0 <= rate.tokens_per_s < float("inf")
