"""Where a request's engine is told to take the beginning of the prompt from, and what is learned of
what it then says.
"""

from collections.abc import AsyncIterator

import msgspec
import pytest

from app.queue import Job
from app.routing.candidate import SourceKind
from app.transfers import ExpectedTransfer, Transfer, transfer_of
from cache_tiers.messages import PeerAddress
from engine.messages import (
    CacheSnapshot,
    LoadView,
    Medium,
    RestoredTokens,
    TimelineEvent,
    TokenDelta,
    Usage,
)
from tests.unit.app.dispatch_bench import Bench, dispatch_bench
from tests.unit.app.fakes import FakeEngine, make_card

FITTED = LoadView(prefill_base_s=0.01, prefill_token_s=0.001)
FULL = LoadView(
    num_running=64, pending_prefill_tokens=10_000, prefill_base_s=0.01, prefill_token_s=0.001
)
NUM_TOKENS = 600


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with dispatch_bench() as bench:
        yield bench


def engine_on(node: str, engine_id: str) -> FakeEngine:
    card = msgspec.structs.replace(
        make_card(engine_id), node_id=node, node_cache=PeerAddress(node, 7000, b"secret")
    )
    return FakeEngine(card=card)


def hold(bench: Bench, engine: FakeEngine, medium: Medium, load: LoadView = FITTED) -> None:
    keys = bench.job(NUM_TOKENS).prompt.index_keys
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(0, keys, medium=medium))
    engine.step(load)


def begin(engine: FakeEngine, job: Job, cached_tokens: int, restored: RestoredTokens) -> None:
    usage = Usage(len(job.prompt.token_ids), cached_tokens, 1, restored=restored)
    engine.send(TokenDelta(job.request_id, [1], usage=usage))
    engine.step(engine.load)


async def test_an_engine_is_told_of_a_peer_that_holds_more(bench: Bench) -> None:
    far, near = engine_on("a", "far"), engine_on("b", "near")
    bench.add(far, near)
    hold(bench, far, Medium.ACCELERATOR, FULL)
    near.step(FITTED)

    job = bench.send(NUM_TOKENS)

    assert job.engine_id == "near"
    assert near.requests[job.request_id].peer == PeerAddress("a", 7000, b"secret")
    assert job.expected_transfer is not None
    assert job.expected_transfer.kind is SourceKind.PEER
    assert job.expected_transfer.num_tokens == job.predicted_cached_tokens == 512
    assert job.expected_transfer.time_s == pytest.approx(512 / 4000), "as fast as 4 times computed"
    assert job.timeline[-1] == TimelineEvent("source_peer", 0.0, 512)


@pytest.mark.parametrize("has_tiers", [(True, False), (False, True)])
async def test_who_has_no_tiers_neither_lends_nor_pulls(
    bench: Bench, has_tiers: tuple[bool, bool]
) -> None:
    far, near = (
        engine_on(name, name) if has else FakeEngine(name)
        for name, has in zip(("far", "near"), has_tiers, strict=True)
    )
    bench.add(far, near)
    hold(bench, far, Medium.ACCELERATOR, FULL)
    near.step(FITTED)

    job = bench.send(NUM_TOKENS)

    assert job.engine_id == "near"
    assert near.requests[job.request_id].peer is None
    assert job.expected_transfer is None
    assert job.predicted_cached_tokens == 0


async def test_what_was_sent_to_a_peer_and_is_not_computed_yet_can_not_be_pulled(
    bench: Bench,
) -> None:
    far, near = engine_on("a", "far"), engine_on("b", "near")
    bench.add(far)
    far.step(FITTED)
    bench.send(NUM_TOKENS)
    far.step(FULL)
    bench.add(near)
    near.step(FITTED)

    job = bench.send(NUM_TOKENS)

    assert job.engine_id == "near"
    assert near.requests[job.request_id].peer is None


async def test_what_the_node_holds_is_expected_and_no_peer_is_named(bench: Bench) -> None:
    engine = engine_on("a", "a")
    bench.add(engine)
    hold(bench, engine, Medium.HOST)

    job = bench.send(NUM_TOKENS)

    assert engine.requests[job.request_id].peer is None
    assert job.expected_transfer is not None
    assert job.expected_transfer.kind is SourceKind.HOST
    assert job.predicted_cached_tokens is not None
    assert job.predicted_cached_tokens >= 512


async def test_what_a_transfer_took_is_expected_of_the_next_one(bench: Bench) -> None:
    engine = engine_on("a", "a")
    bench.add(engine)
    hold(bench, engine, Medium.HOST)
    begin(engine, bench.send(NUM_TOKENS), 576, RestoredTokens(host=576, seconds=0.0576))

    job = bench.send(NUM_TOKENS)

    assert job.expected_transfer is not None
    assert job.expected_transfer.time_s == pytest.approx(job.expected_transfer.num_tokens / 10_000)


async def test_hits_in_the_nodes_memory_do_not_count_as_the_accelerators(bench: Bench) -> None:
    engine = engine_on("a", "a")
    bench.add(engine)
    hold(bench, engine, Medium.ACCELERATOR)
    job = bench.send(NUM_TOKENS)

    begin(engine, job, 592, RestoredTokens(host=592, seconds=0.01))

    assert engine.num_snapshots_asked == 1, "its accelerator held less than it had said"


async def test_peers_that_never_give_what_they_hold_are_expected_to_give_less(
    bench: Bench,
) -> None:
    far, near = engine_on("a", "far"), engine_on("b", "near")
    bench.add(far, near)
    hold(bench, far, Medium.ACCELERATOR, FULL)
    near.step(FITTED)
    expected = []
    for _ in range(5):
        job = bench.send(NUM_TOKENS)
        assert job.expected_transfer is not None
        expected.append(job.expected_transfer.num_tokens)
        begin(near, job, 0, RestoredTokens())
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] < 0.6 * expected[0]


async def test_who_comes_while_its_beginning_is_pulled_waits_for_the_same_pull(
    bench: Bench,
) -> None:
    far, near = engine_on("a", "far"), engine_on("b", "near")
    bench.add(far, near)
    hold(bench, far, Medium.ACCELERATOR, FULL)
    near.step(FITTED)
    first, second = bench.send(NUM_TOKENS), bench.send(NUM_TOKENS)
    other = bench.send(NUM_TOKENS, token=8)
    assert {first.engine_id, second.engine_id, other.engine_id} == {"near"}
    peers = [near.requests[job.request_id].peer for job in (first, second, other)]
    assert peers == [far.card.node_cache, far.card.node_cache, None]
    assert second.expected_transfer is None, "it was counted once"

    hold(bench, near, Medium.ACCELERATOR)
    third = bench.send(NUM_TOKENS)
    assert near.requests[third.request_id].peer is None


PEER = ExpectedTransfer(SourceKind.PEER, 100, 0.1)
HOST = ExpectedTransfer(SourceKind.HOST, 100, 0.1)


@pytest.mark.parametrize(
    ("restored", "expected", "transfer"),
    [
        (RestoredTokens(), PEER, None),
        (RestoredTokens(host=32, seconds=0.2), None, Transfer(SourceKind.HOST, 32, 0, 0.2)),
        (RestoredTokens(16, 32, 0, seconds=0.2), HOST, Transfer(SourceKind.DISK, 32, 16, 0.2)),
        (RestoredTokens(16, 0, 32, seconds=0.2), HOST, Transfer(SourceKind.PEER, 48, 0, 0.2)),
        (RestoredTokens(host=32, seconds=0.2), PEER, Transfer(SourceKind.PEER, 32, 0, 0.2)),
        (RestoredTokens(16, 0, 0, 32, seconds=0.2), HOST, None),
    ],
)
def test_a_transfer_counts_for_the_farthest_medium_or_the_peer_that_was_named(
    restored: RestoredTokens, expected: ExpectedTransfer | None, transfer: Transfer | None
) -> None:
    assert transfer_of(restored, expected) == transfer
