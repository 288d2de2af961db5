"""Where a prompt's KV comes from on one replica."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.candidate import LOCAL, Candidate, HeldPrefix, ReplicaRates, Source, SourceKind
from app.routing.prefill import Holder, cheapest_prefill, longest_holder, longest_lender
from engine.messages import LoadView

TOKEN_S = 0.001
PEER = Holder(Source(SourceKind.PEER, "peer"), 900)


NOTHING = HeldPrefix()


def replica(held: HeldPrefix = NOTHING, **fields: Any) -> Candidate:
    idle = Candidate("e0", LoadView(), 16, held, 0, 0, 0, 0)
    return msgspec.structs.replace(idle, **fields)


@pytest.mark.parametrize(
    ("rates", "kind", "transfer_s", "compute_s"),
    [
        (ReplicaRates(), SourceKind.LOCAL, 0.0, 0.9),
        (ReplicaRates(host_tokens_per_s=10_000), SourceKind.HOST, 0.03, 0.6),
        (ReplicaRates(disk_tokens_per_s=10_000), SourceKind.DISK, 0.06, 0.3),
        (
            ReplicaRates(host_tokens_per_s=10_000, disk_tokens_per_s=2_000),
            SourceKind.DISK,
            0.03 + 0.15,
            0.3,
        ),
        # A disk that is slower than the accelerator computes is left alone.
        (
            ReplicaRates(host_tokens_per_s=10_000, disk_tokens_per_s=500),
            SourceKind.HOST,
            0.03,
            0.6,
        ),
        (ReplicaRates(peer_tokens_per_s=10_000), SourceKind.PEER, 0.08, 0.1),
        (ReplicaRates(peer_tokens_per_s=500), SourceKind.LOCAL, 0.0, 0.9),
    ],
)
def test_the_fastest_source_is_taken(
    rates: ReplicaRates, kind: SourceKind, transfer_s: float, compute_s: float
) -> None:
    prefill = cheapest_prefill(1000, replica(HeldPrefix(100, 400, 700), rates=rates), TOKEN_S, PEER)
    assert prefill.source.kind is kind
    assert (prefill.transfer_s, prefill.compute_s) == pytest.approx((transfer_s, compute_s))
    assert prefill.source.peer_id == ("peer" if kind is SourceKind.PEER else None)


def test_a_doubtful_prefix_counts_by_its_chance() -> None:
    doubted = replica(HeldPrefix(800, 800, 800), hit_probability=0.5)
    assert cheapest_prefill(1000, doubted, TOKEN_S).compute_s == pytest.approx(0.6)


def test_nobody_pulls_from_itself() -> None:
    rates = ReplicaRates(peer_tokens_per_s=1e9)
    own = Holder(Source(SourceKind.PEER, "e0"), 900)
    assert cheapest_prefill(1000, replica(rates=rates), TOKEN_S, own).source == LOCAL


def test_long_prompts_cost_more_than_their_tokens_and_late_ones_more_than_early_ones() -> None:
    rates = ReplicaRates(prefill_attended_s=1e-6)
    whole = cheapest_prefill(1000, replica(rates=rates), TOKEN_S).compute_s
    assert whole == pytest.approx(1000 * TOKEN_S + 1e-6 * 1000 * 500)
    half = cheapest_prefill(1000, replica(HeldPrefix(500), rates=rates), TOKEN_S).compute_s
    assert half == pytest.approx(500 * TOKEN_S + 1e-6 * 500 * 750)


def test_the_last_prompt_token_is_computed_whatever_is_held() -> None:
    assert cheapest_prefill(1000, replica(HeldPrefix(5000)), TOKEN_S).compute_s == TOKEN_S


def test_who_holds_most_lends_and_equals_take_turns() -> None:
    holders = [
        replica(HeldPrefix(0, 0, number), engine_id=name)
        for name, number in (("a", 5), ("b", 9), ("c", 9))
    ]
    lenders = {longest_holder(holders, turn) for turn in range(4)}
    assert lenders == {Holder(Source(SourceKind.PEER, name), 9) for name in ("b", "c")}
    assert longest_holder([replica()], 0) is None


def test_only_who_can_lend_lends() -> None:
    most = replica(HeldPrefix(900), engine_id="most", can_lend=False)
    some = replica(HeldPrefix(300), engine_id="some")
    lender = Holder(Source(SourceKind.PEER, "some"), 300)
    assert longest_lender([most, some], 0, longest_holder([most, some], 0)) == lender
    assert longest_lender([some], 0, lender) == lender
    assert longest_lender([most], 0, longest_holder([most], 0)) is None


def test_a_transfer_counts_what_comes_from_the_source_and_a_doubtful_pull_brings_less() -> None:
    rates = ReplicaRates(peer_tokens_per_s=10_000)
    whole = cheapest_prefill(1000, replica(HeldPrefix(100), rates=rates), TOKEN_S, PEER)
    assert (whole.transfer_tokens, whole.compute_s) == pytest.approx((800, 0.1))
    doubtful = replica(HeldPrefix(100), rates=rates, pull_probability=0.5)
    half = cheapest_prefill(1000, doubtful, TOKEN_S, PEER)
    assert (half.transfer_tokens, half.compute_s) == pytest.approx((400, 0.5))
    assert cheapest_prefill(1000, doubtful, TOKEN_S).transfer_tokens == 0


SPEEDS = st.just(0.0) | st.floats(1.0, 1e9)
HELD = st.lists(st.integers(0, 10**5), min_size=3, max_size=3).map(lambda n: HeldPrefix(*sorted(n)))


@given(st.integers(1, 10**5), HELD, st.tuples(SPEEDS, SPEEDS, SPEEDS), st.floats(0, 1e5))
def test_a_source_is_never_slower_than_to_compute(
    num_prompt_tokens: int, held: HeldPrefix, speeds: tuple[float, float, float], lent: float
) -> None:
    rates = ReplicaRates(0.0, 0.0, 1e-9, *speeds)
    holder = Holder(PEER.source, lent)
    best = cheapest_prefill(num_prompt_tokens, replica(held, rates=rates), TOKEN_S, holder)
    alone = replica(held, rates=ReplicaRates(prefill_attended_s=1e-9))
    local = cheapest_prefill(num_prompt_tokens, alone, TOKEN_S)
    assert 0 <= best.transfer_s + best.compute_s <= local.compute_s
